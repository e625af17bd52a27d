#include "differentiated.h"

#include <torch/csrc/autograd/python_variable.h>

namespace op_tools {
namespace {

// The headers of functorch ask for a library that torch does not ship: its Python side is asked instead.
py::object ask_private(const char* function, const py::object& argument = py::none()) {
    return py::module_::import("op_tools.engine.private").attr(function)(argument);
}

at::Tensor held_by(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.key_set().has(DispatchKey::FuncTorchGradWrapper)) return tensor;
    const Entrance entrance;
    if (!entrance) return tensor;
    const ToolsAtWork work;
    const auto held = ask_private("held_by", py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor)));
    return THPVariable_Unpack(held.ptr());
}

IValue held_by(const IValue& value) {
    if (value.isTensor()) return held_by(value.toTensor());
    if (value.isTensorList()) {
        c10::List<at::Tensor> held;
        for (const at::Tensor& tensor : value.toTensorList()) held.push_back(held_by(tensor));
        return held;
    }
    if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> held;
        for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
            held.push_back(tensor ? std::optional(held_by(*tensor)) : std::nullopt);
        return held;
    }
    return value;
}

}  // namespace

bool is_differentiated() {
    if ((c10::impl::tls_local_dispatch_key_set().included_ & functorch_modes).empty()) return false;
    const Entrance entrance;
    if (!entrance) return false;
    const ToolsAtWork work;
    return ask_private("only_differentiates").cast<bool>();
}

std::vector<IValue> values_held_by(Values values) {
    std::vector<IValue> held;
    for (const auto& value : values) held.push_back(held_by(value));
    return held;
}

}  // namespace op_tools
