// torch_dipu._C: streams, their callbacks, and the debug mode for synchronisations.
#include <torch/csrc/python_headers.h>
#include <pybind11/pybind11.h>
#include <c10/util/Exception.h>

#include <cstdio>
#include <string>

#include "../runtime/device.h"
#include "../runtime/sync_debug.h"
#include "bindings.h"

namespace py = pybind11;

namespace dipu_python {
namespace {

// A Python function in a stream's queue. The stream's thread may outlive the interpreter.
struct Callback {
    PyObject* function;
};

int call_back(void* argument, char* error, size_t size) {
    if (Py_IsInitialized() == 0) return 0;
    py::gil_scoped_acquire held;
    PyObject* result = PyObject_CallNoArgs(static_cast<Callback*>(argument)->function);
    if (result) {
        Py_DECREF(result);
        return 0;
    }
    try {
        throw py::error_already_set();
    } catch (const std::exception& raised) {
        std::snprintf(error, size, "%s", raised.what());
    }
    return 1;
}

void drop_callback(void* argument) {
    auto* callback = static_cast<Callback*>(argument);
    if (Py_IsInitialized() != 0) {
        py::gil_scoped_acquire held;
        Py_DECREF(callback->function);
    }
    delete callback;
}

void add_callback(int device, int64_t stream, const py::function& function) {
    TORCH_CHECK_NOT_IMPLEMENTED(dipu::vendor()->stream_run, "dipu: the vendor ", dipu::vendor()->name, " runs no host functions in its streams");
    void* handle = dipu::stream_handle(device, stream);
    auto* callback = new Callback{function.inc_ref().ptr()};
    py::gil_scoped_release released;
    dipu::check(dipu::vendor()->stream_run(handle, "a host callback", call_back, drop_callback, callback), "running a host callback");
}

}  // namespace

void bind_streams(py::module_& m) {
    m.def("stream_handle", [](int device, int64_t stream) {
        dipu::check_device(device);
        return reinterpret_cast<uintptr_t>(dipu::stream_handle(device, stream));
    });
    m.def("stream_priority", &dipu::stream_priority);
    m.def("stream_priority_range", [](int device) {
        const auto range = dipu::stream_priority_range(device);
        return py::make_tuple(range.least, range.greatest);
    });
    m.def("add_callback", &add_callback);
    m.def("set_blocking_events", &dipu::set_blocking_events);
    m.def("set_sync_debug_mode", [](int mode) { dipu::sync_debug_mode = static_cast<dipu::SyncDebugMode>(mode); });
    m.def("sync_debug_mode", [] { return static_cast<int>(dipu::sync_debug_mode.load()); });
}

}  // namespace dipu_python
