// A call between C++ and Python: an operator's arguments and results, as torch hands them to a dispatch mode.
#pragma once

#include <torch/csrc/python_headers.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace op_tools {

namespace py = pybind11;
using c10::IValue;

using Values = c10::ArrayRef<const IValue>;

enum class Form : uint8_t { plain, dtype, layout, memory_format };

struct Argument {
    py::str name;
    bool keyword_only;
    Form form;
    std::optional<IValue> default_value;
};

// The tensors of one call as Python sees them. One that only C++ has is shown by another tensor of the same memory: an object of
// Python's that is tied to it would stay with it, and its owners could no longer write to it in place, nor make it a tensor of a
// class of the program. Used with the GIL held, and cleared before it goes.
class Shown {
   public:
    Shown() = default;
    Shown(const Shown&) = delete;
    Shown& operator=(const Shown&) = delete;

    // `with_graph`: with its place in autograd's graph, which is looked up, and made where it has changed.
    py::object tensor(const at::Tensor& tensor, bool with_graph);
    py::object value(const IValue& value, bool with_graph);
    void clear();
    void abandon() { made_.clear(); }

   private:
    // The tensor is not held, but as long as its place is kept no other one gets it.
    std::vector<std::pair<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>, PyObject*>> made_;
};

// What an operator is called with, as its schema has it. Made and used with the GIL held.
class Signature {
   public:
    explicit Signature(const c10::OperatorHandle& handle);

    // As torch hands a call to a dispatch mode: what stands at its default at the end is left out.
    std::pair<py::tuple, py::dict> to_python(Values inputs, Shown* shown = nullptr) const;

    py::object function;  // torch.ops.aten.add.Tensor

   private:
    bool numbers_as_tensors_;
    std::vector<Argument> arguments_;
};

py::object result_to_python(Values outputs, Shown& shown, bool with_graph);

// Of a stack, what belongs to a call.
inline Values last(Values stack, size_t count) { return stack.size() > count ? stack.slice(stack.size() - count) : stack; }

// A library has put a kernel in front of one of ours, or has taken away the one behind it.
void kernels_changed(const std::string& name, const std::string& overload);
void observe_again(const std::string& name, const std::string& overload);

void bind_observer(py::module_& module);
void bind_interceptor(py::module_& module);
void bind_routing(py::module_& module);
void bind_scopes(py::module_& module);
void bind_storages(py::module_& module);
void bind_copies(py::module_& module);
void bind_trees(py::module_& module);
void bind_call_sites(py::module_& module);
void bind_texts(py::module_& module);
void bind_csv(py::module_& module);
void bind_nodes(py::module_& module);
void bind_clocks(py::module_& module);

}  // namespace op_tools
