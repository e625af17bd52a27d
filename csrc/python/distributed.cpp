// torch_dipu._C: the backend `dicl`. Bound when torch.distributed is there, as its classes derive from those.
#include <torch/csrc/python_headers.h>
#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "../distributed/backend.h"

namespace py = pybind11;
using dipu::DiclBackend;

void bind_distributed(py::module_ module) {
    py::class_<DiclBackend::Options, c10::intrusive_ptr<DiclBackend::Options>, c10d::Backend::Options>(module, "DiclOptions")
        .def("__deepcopy__", [](const DiclBackend::Options& self, const py::dict&) { return c10::make_intrusive<DiclBackend::Options>(self); });
    py::class_<DiclBackend, c10::intrusive_ptr<DiclBackend>, c10d::Backend>(module, "DiclBackend")
        .def_property_readonly("options", [](DiclBackend& self) {
            return c10::static_intrusive_pointer_cast<DiclBackend::Options>(self.getBackendOptions());
        })
        // A split asks ranks outside of it to take part; here they need not.
        .def("perform_nocolor_split", [](DiclBackend&, const py::object&) {});
    module.def("set_store_owner", &dipu::set_store_owner);
    module.def("set_host_backend_factory", [](const py::function& make) {
        dipu::set_host_backend_factory([make](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout) {
            const py::gil_scoped_acquire locked;
            return make(store, rank, size, timeout).cast<c10::intrusive_ptr<c10d::Backend>>();
        });
    });
    module.def(
        "make_backend",
        [](const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int rank, int size, std::vector<int64_t> global_ranks,
           std::chrono::milliseconds timeout) {
            return DiclBackend::make(store, {name, rank, size, std::move(global_ranks)}, timeout);
        },
        py::call_guard<py::gil_scoped_release>());
}
