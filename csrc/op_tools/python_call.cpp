#include "python_call.h"

#include <algorithm>

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/python_arg_parser.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

namespace op_tools {

// ---- tensors ----

namespace {

// Torch has changed the name of the question.
template <typename Slot>
auto has_object(const Slot& slot, int) -> decltype(slot.load_pyobj() != nullptr) {
    return slot.load_pyobj() != nullptr;
}
template <typename Slot>
bool has_object(const Slot& slot, long) {
    return slot.check_pyobj().has_value();
}

at::Tensor same_memory(const at::Tensor& tensor, bool with_graph) {
    at::Tensor other = tensor.tensor_data();  // of the same version as well
    if (!tensor.requires_grad()) return other;
    if (with_graph && tensor.grad_fn() != nullptr)
        torch::autograd::impl::set_gradient_edge(other, torch::autograd::impl::gradient_edge(tensor));
    else
        other.set_requires_grad(true);
    return other;
}

// Zeros that have no memory, as tangents and gradients can be: what reads them below the key that knows of that would read nowhere.
at::Tensor with_memory(const at::Tensor& zeros) { return at::zeros_symint(zeros.sym_sizes(), zeros.options().requires_grad(false)); }

bool holds_tensors(c10::ArrayRef<IValue> items) {
    return std::any_of(items.begin(), items.end(), [](const IValue& item) { return item.isTensor(); });
}

}  // namespace

void Shown::clear() {
    for (const auto& [tensor, object] : std::exchange(made_, {})) Py_DECREF(object);
}

py::object Shown::tensor(const at::Tensor& tensor, bool with_graph) {
    if (!tensor.defined()) return py::none();
    c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
    for (const auto& [known, object] : made_)
        if (known._unsafe_get_target() == impl) return py::reinterpret_borrow<py::object>(object);
    const bool has_memory = !tensor._is_zerotensor();
    if (has_memory && has_object(*impl->pyobj_slot(), 0)) return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
    auto object = py::reinterpret_steal<py::object>(THPVariable_Wrap(has_memory ? same_memory(tensor, with_graph) : with_memory(tensor)));
    if (!object) throw py::error_already_set();
    made_.emplace_back(c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(tensor.getIntrusivePtr()), object.inc_ref().ptr());
    return object;
}

py::object Shown::value(const IValue& value, bool with_graph) {
    if (value.isTensor()) return tensor(value.toTensor(), with_graph);
    if (!value.isList() || !holds_tensors(value.toListRef())) return torch::jit::toPyObject(value);
    const auto items = value.toListRef();
    py::list list(items.size());
    for (size_t index = 0; index < items.size(); ++index) list[index] = this->value(items[index], with_graph);
    return std::move(list);
}

// ---- arguments and results ----

namespace {

Form form_of(const c10::Argument& argument) {
    c10::TypePtr type = argument.real_type();
    while (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    switch (type->kind()) {
        case c10::TypeKind::ScalarTypeType: return Form::dtype;
        case c10::TypeKind::LayoutType: return Form::layout;
        case c10::TypeKind::MemoryFormatType: return Form::memory_format;
        default: return Form::plain;
    }
}

py::object borrowed(void* object) { return py::reinterpret_borrow<py::object>(static_cast<PyObject*>(object)); }

// A number that the program wrote where a tensor stands becomes a number again, as for a dispatch mode, where the operator takes
// one. Tensors of a kernel that a tool stands in for (`shown` is null) are the tensors themselves: what it returns goes on.
py::object value_to_python(const IValue& value, Form form, bool numbers_as_tensors, Shown* shown) {
    if (form != Form::plain && value.isInt()) {
        const auto number = value.toInt();
        switch (form) {
            case Form::dtype: return borrowed(torch::getTHPDtype(static_cast<at::ScalarType>(number)));
            case Form::layout: return borrowed(torch::getTHPLayout(static_cast<at::Layout>(number)));
            default: return borrowed(torch::utils::getTHPMemoryFormat(static_cast<at::MemoryFormat>(number)));
        }
    }
    const bool is_number = numbers_as_tensors && value.isTensor() && value.toTensor().defined() &&
                           value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
    if (is_number) return torch::jit::toPyObject(value);
    if (shown != nullptr) return shown->value(value, false);
    if (value.isTensor()) return py::reinterpret_steal<py::object>(THPVariable_Wrap(value.toTensor()));
    return torch::jit::toPyObject(value);
}

bool is_default(const IValue& value, const Argument& argument) {
    if (!argument.default_value) return false;
    const IValue& usual = *argument.default_value;
    if (value.isTensor() || value.isTensorList()) return value.isTensor() && usual.isNone() && !value.toTensor().defined();
    if (usual.isNone() || value.isNone()) return usual.isNone() && value.isNone();
    if (value.tagKind() != usual.tagKind()) return false;
    if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) return false;
    return value == usual;
}

}  // namespace

Signature::Signature(const c10::OperatorHandle& handle)
    : function(py::reinterpret_borrow<py::object>(torch::detail::getTorchApiFunction(handle))),
      numbers_as_tensors_(torch::should_allow_numbers_as_tensors(handle.schema().name().substr(handle.schema().name().find("::") + 2))) {
    for (const auto& argument : handle.schema().arguments())
        arguments_.push_back({py::str(argument.name()), argument.kwarg_only(), form_of(argument), argument.default_value()});
}

std::pair<py::tuple, py::dict> Signature::to_python(Values inputs, Shown* shown) const {
    size_t positional = 0;
    for (size_t index = 0; index < inputs.size() && index < arguments_.size(); ++index)
        if (!arguments_[index].keyword_only && !is_default(inputs[index], arguments_[index])) positional = index + 1;
    py::tuple args(positional);
    for (size_t index = 0; index < positional; ++index)
        args[index] = value_to_python(inputs[index], arguments_[index].form, numbers_as_tensors_, shown);
    py::dict kwargs;
    for (size_t index = 0; index < inputs.size() && index < arguments_.size(); ++index) {
        const auto& argument = arguments_[index];
        if (argument.keyword_only && !is_default(inputs[index], argument))
            kwargs[argument.name] = value_to_python(inputs[index], argument.form, numbers_as_tensors_, shown);
    }
    return {std::move(args), std::move(kwargs)};
}

py::object result_to_python(Values outputs, Shown& shown, bool with_graph) {
    if (outputs.empty()) return py::none();
    if (outputs.size() == 1) return shown.value(outputs[0], with_graph);
    py::tuple result(outputs.size());
    for (size_t index = 0; index < outputs.size(); ++index) result[index] = shown.value(outputs[index], with_graph);
    return std::move(result);
}

}  // namespace op_tools
