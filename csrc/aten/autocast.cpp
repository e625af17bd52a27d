// Automatic mixed precision, by torch's own lists.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace at::autocast {
namespace {

Tensor refuse_binary_cross_entropy(const Tensor&, const Tensor&, const std::optional<Tensor>&, int64_t) {
    TORCH_CHECK(false, "binary_cross_entropy is unsafe under autocast: its input may have left the range of the lower precision. "
                       "Use binary_cross_entropy_with_logits, or leave autocast around it.");
}

}  // namespace

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define DIPU_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define DIPU_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define DIPU_FP32_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define DIPU_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
    AT_FORALL_LOWER_PRECISION_FP(DIPU_LOWER)
    AT_FORALL_FP32(DIPU_FP32)
    AT_FORALL_FP32_SET_OPT_DTYPE(DIPU_FP32_DTYPE)
    AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
    AT_FORALL_PROMOTE(DIPU_PROMOTE)
    m.impl("binary_cross_entropy", TORCH_FN(refuse_binary_cross_entropy));
}

}  // namespace at::autocast
