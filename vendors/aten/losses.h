// What the losses have in common.
#pragma once
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>

#include "results.h"

namespace dipu_vendor {

inline void check_reduction(diopiReduction_t reduction) {
    TORCH_CHECK(reduction == ReductionNone || reduction == ReductionMean || reduction == ReductionSum, "there is no reduction ",
                static_cast<int>(reduction), "; there are none (0), mean (1) and sum (2)");
}

// What comes from behind: one number, or of the loss's shape.
inline void check_grad(const at::Tensor& grad, at::IntArrayRef loss_shape, diopiReduction_t reduction) {
    const bool fits = reduction == ReductionNone ? grad.sizes() == loss_shape : grad.numel() == 1;
    TORCH_CHECK(fits, "grad_output has the shape ", grad.sizes(), " but the loss has ",
                reduction == ReductionNone ? loss_shape : at::IntArrayRef());
}

inline at::Tensor behind(const at::Tensor& grad, diopiReduction_t reduction) {
    return reduction == ReductionNone ? upcast(grad) : upcast(grad).reshape({});
}

// Slopes times what comes from behind. The mean divides first: the product may be too large for the dtype.
inline at::Tensor chained(const at::Tensor& slope, const at::Tensor& grad, diopiReduction_t reduction) {
    return (reduction == ReductionMean ? slope / static_cast<double>(slope.numel()) : slope) * behind(grad, reduction);
}

inline at::Tensor reduced(const at::Tensor& loss, diopiReduction_t reduction) {
    if (reduction == ReductionMean) return loss.mean();
    return reduction == ReductionSum ? loss.sum() : loss;
}

}  // namespace dipu_vendor
