// Nested tensors: those of layout torch.jagged are made of dense ones in Python and need nothing here; the older strided ones are refused.
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

namespace dipu {
namespace {

[[noreturn]] void refuse() {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "dipu: nested tensors of layout torch.strided are not supported; make them with layout=torch.jagged");
}

at::Tensor refuse_to_make(at::TensorList, std::optional<at::ScalarType>, std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
    refuse();
}

void refuse_to_run(const c10::OperatorHandle&, torch::jit::Stack*) { refuse(); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_nested_tensor_from_tensor_list", refuse_to_make); }
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_to_run>()); }

}  // namespace
}  // namespace dipu
