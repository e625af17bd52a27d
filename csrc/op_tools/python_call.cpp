#include "python_call.h"

#include <ATen/record_function.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/python_arg_parser.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

namespace op_tools {

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

// A number that the program wrote where a tensor stands becomes a number again, as for a dispatch mode, where the operator takes one.
py::object tensors_to_python(const IValue& value, bool numbers_as_tensors) {
    if (value.isTensor() && !numbers_as_tensors)
        return py::reinterpret_steal<py::object>(THPVariable_Wrap(value.toTensor()));
    return torch::jit::toPyObject(value);
}

py::object value_to_python(const IValue& value, Form form, bool numbers_as_tensors) {
    if (form != Form::plain && value.isInt()) {
        const auto number = value.toInt();
        switch (form) {
            case Form::dtype:
                return py::reinterpret_borrow<py::object>(
                    reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<at::ScalarType>(number))));
            case Form::layout:
                return py::reinterpret_borrow<py::object>(
                    reinterpret_cast<PyObject*>(torch::getTHPLayout(static_cast<at::Layout>(number))));
            default:
                return py::reinterpret_borrow<py::object>(torch::utils::getTHPMemoryFormat(static_cast<at::MemoryFormat>(number)));
        }
    }
    return tensors_to_python(value, numbers_as_tensors);
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

std::pair<py::tuple, py::dict> Signature::to_python(c10::ArrayRef<const IValue> inputs) const {
    size_t positional = 0;
    for (size_t index = 0; index < inputs.size() && index < arguments_.size(); ++index)
        if (!arguments_[index].keyword_only && !is_default(inputs[index], arguments_[index])) positional = index + 1;
    py::tuple args(positional);
    for (size_t index = 0; index < positional; ++index) args[index] = value_to_python(inputs[index], arguments_[index].form, numbers_as_tensors_);
    py::dict kwargs;
    for (size_t index = 0; index < inputs.size() && index < arguments_.size(); ++index) {
        const auto& argument = arguments_[index];
        if (argument.keyword_only && !is_default(inputs[index], argument)) kwargs[argument.name] = value_to_python(inputs[index], argument.form, numbers_as_tensors_);
    }
    return {std::move(args), std::move(kwargs)};
}

py::object result_to_python(const std::vector<IValue>& outputs) {
    if (outputs.empty()) return py::none();
    if (outputs.size() == 1) return tensors_to_python(outputs[0], false);
    py::tuple result(outputs.size());
    for (size_t index = 0; index < outputs.size(); ++index) result[index] = tensors_to_python(outputs[index], false);
    return result;
}

// ---- a thread ----

thread_local ThreadState this_thread;

namespace {

PyObject* compiler = nullptr;

// Record functions are turned off only where a profiler would show what the tools call: that costs more than the call.
bool profiled() { return at::hasThreadLocalCallbacks() && at::isRecordFunctionEnabled(); }

}  // namespace

void set_compiler(const py::object& set_eval_frame) { compiler = set_eval_frame.inc_ref().ptr(); }

EnterPython::EnterPython() {
    PyErr_Fetch(&type_, &value_, &trace_);
    if (compiler != nullptr) compiler_ = PyObject_CallOneArg(compiler, Py_None);
}

EnterPython::~EnterPython() {
    if (compiler_ != nullptr) {
        Py_XDECREF(PyObject_CallOneArg(compiler, compiler_));
        Py_DECREF(compiler_);
    }
    PyErr_Restore(type_, value_, trace_);
}

ToolsAtWork::ToolsAtWork() : disabled_(profiled()) {
    ++this_thread.unobserved, ++this_thread.at_work;
    if (disabled_) at::enableRecordFunction(false);
}

ToolsAtWork::~ToolsAtWork() {
    if (disabled_) at::enableRecordFunction(true);
    --this_thread.unobserved, --this_thread.at_work;
}

void hide() {
    ++this_thread.unobserved, ++this_thread.at_work;
    if (this_thread.disabled > 0) {
        ++this_thread.disabled;
    } else if (profiled()) {
        at::enableRecordFunction(false);
        this_thread.disabled = 1;
    }
}

void show() {
    --this_thread.unobserved, --this_thread.at_work;
    if (this_thread.disabled > 0 && --this_thread.disabled == 0) at::enableRecordFunction(true);
}

void raise_in_program(py::error_already_set& error) {
    try {
        auto native = py::module_::import("op_tools.engine.native");
        const auto [thread, kind] = native.attr("raised_later")(error.value()).cast<std::pair<unsigned long, py::object>>();
        PyThreadState_SetAsyncExc(thread, kind.ptr());
    } catch (py::error_already_set& second) {
        second.discard_as_unraisable("op_tools: an error of the device could not be raised in the program");
    }
}

}  // namespace op_tools
