// A call between C++ and Python: an operator's arguments and results, and the tools at work on a thread.
#pragma once

#include <torch/csrc/python_headers.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pybind11/pybind11.h>

#include <optional>
#include <utility>
#include <vector>

namespace op_tools {

namespace py = pybind11;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;

// Tensors that stand for others: the calls that are made for them on what they stand for are what is seen.
constexpr DispatchKeySet wrapper_keys =
    c10::python_ks | c10::functorch_transforms_ks | DispatchKeySet({DispatchKey::Functionalize, DispatchKey::Fake});
// Modes of the program and transforms, likewise.
constexpr DispatchKeySet mode_keys =
    wrapper_keys | DispatchKeySet({DispatchKey::FuncTorchDynamicLayerFrontMode, DispatchKey::FuncTorchDynamicLayerBackMode,
                                   DispatchKey::PythonDispatcher, DispatchKey::PreDispatch, DispatchKey::Tracer});

enum class Form : uint8_t { plain, dtype, layout, memory_format };

struct Argument {
    py::str name;
    bool keyword_only;
    Form form;
    std::optional<IValue> default_value;
};

// What an operator is called with, as its schema has it. Made and used with the GIL held.
class Signature {
   public:
    explicit Signature(const c10::OperatorHandle& handle);

    // As torch hands a call to a dispatch mode: what stands at its default at the end is left out.
    std::pair<py::tuple, py::dict> to_python(c10::ArrayRef<const IValue> inputs) const;

    py::object function;  // torch.ops.aten.add.Tensor

   private:
    bool numbers_as_tensors_;
    std::vector<Argument> arguments_;
};

py::object result_to_python(const std::vector<IValue>& outputs);

// What one thread is doing.
struct ThreadState {
    int unobserved = 0;    // calls are not for the observer: part of one that it has seen, of a call taken as a whole, or the tools' own
    int at_work = 0;       // the tools are at work
    int intercepting = 0;  // a call runs in a tool's own way
    int disabled = 0;      // how often `hide` had to turn record functions off for a profiler
};

extern thread_local ThreadState this_thread;

// The function of torch._dynamo that sets what compiles frames, once it is imported: what the tools do is not to be compiled.
void set_compiler(const py::object& set_eval_frame);

// Python on a thread that may come from anywhere, with the compiler kept away and an exception that is on its way left alone.
class EnterPython {
   public:
    EnterPython();
    ~EnterPython();
    EnterPython(const EnterPython&) = delete;
    EnterPython& operator=(const EnterPython&) = delete;

   private:
    py::gil_scoped_acquire gil_;
    PyObject *type_ = nullptr, *value_ = nullptr, *trace_ = nullptr, *compiler_ = nullptr;
};

// The tools at work on this thread: no call of theirs is observed, profiled or intercepted, and none makes a graph.
class ToolsAtWork {
   public:
    ToolsAtWork();
    ~ToolsAtWork();
    ToolsAtWork(const ToolsAtWork&) = delete;
    ToolsAtWork& operator=(const ToolsAtWork&) = delete;

   private:
    EnterPython python_;
    c10::AutoGradMode no_graph_{false};
    c10::impl::ExcludeDispatchKeyGuard no_transforms_{mode_keys - c10::python_ks};
    bool disabled_ = false;
};

// The same for Python's own calls of the tools.
void hide();
void show();

// An exception cannot leave a callback of torch. What the tools let out is the device's own error, met while they waited for it:
// it is raised on the program's thread at its next step, as an asynchronous error would be.
void raise_in_program(py::error_already_set& error);

void bind_observer(py::module_& module);
void bind_interceptor(py::module_& module);
void bind_storages(py::module_& module);
void bind_call_sites(py::module_& module);
void bind_texts(py::module_& module);
void bind_csv(py::module_& module);
void bind_nodes(py::module_& module);
void bind_clocks(py::module_& module);

}  // namespace op_tools
