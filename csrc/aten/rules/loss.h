// Outputs of losses, linear algebra and optimizers; the table names these rules.
#pragma once
#include <ATen/core/Reduction.h>

#include "../outputs.h"

namespace dipu {

// ---- losses ----

// One number, or one for each element.
inline at::Tensor loss_of(const at::Tensor& input, int64_t reduction) {
    return reduction == at::Reduction::None ? like(input) : scalar_like(input);
}
// With logits the target and both weights are broadcast.
inline at::Tensor logits_loss(const at::Tensor& input, const at::Tensor& target, const std::optional<at::Tensor>& weight,
                              const std::optional<at::Tensor>& pos_weight, int64_t reduction) {
    if (reduction != at::Reduction::None) return scalar_like(input);
    auto shape = at::infer_size_dimvector(input.sizes(), target.sizes());
    for (const auto* factor : {&weight, &pos_weight})
        if (value(*factor).defined()) shape = at::infer_size_dimvector(shape, value(*factor).sizes());
    return at::IntArrayRef(shape) == input.sizes() ? like(input) : empty_on(index_of(input), shape, input.scalar_type());
}
// Of class indices: one number, or one for each target; the input has the classes as one more dimension.
inline at::Tensor nll_loss_of(const at::Tensor& input, const at::Tensor& target, int64_t reduction) {
    const bool each = reduction == at::Reduction::None && input.dim() > 1;
    return each ? empty_on(index_of(input), target.sizes(), input.scalar_type()) : scalar_like(input);
}

// ---- outputs that the user gave ----

inline void resize_result(const at::Tensor& out, at::IntArrayRef sizes, at::ScalarType type) {
    TORCH_CHECK(c10::canCast(type, out.scalar_type()), "result type ", type, " can't be cast to the desired output type ", out.scalar_type());
    at::native::resize_output(out, sizes);
}
inline void resize_gradient(const at::Tensor& out, const at::Tensor& input) { resize_result(out, input.sizes(), input.scalar_type()); }
inline void resize_loss(const at::Tensor& out, const at::Tensor& input, int64_t reduction) {
    resize_result(out, reduction == at::Reduction::None ? input.sizes() : at::IntArrayRef(), input.scalar_type());
}
inline void resize_nll_loss(const at::Tensor& out, const at::Tensor& input, const at::Tensor& target, int64_t reduction) {
    const bool each = reduction == at::Reduction::None && input.dim() > 1;
    resize_result(out, each ? target.sizes() : at::IntArrayRef(), input.scalar_type());
}
inline void resize_total_weight(const at::Tensor& out, const at::Tensor& input) { resize_result(out, {}, input.scalar_type()); }
inline void resize_polar(const at::Tensor& out, const at::Tensor& abs, const at::Tensor& angle) {
    const auto type = c10::toComplexType(abs.scalar_type());
    TORCH_CHECK(out.scalar_type() == type, "Expected object of scalar type ", type, " but got scalar type ", out.scalar_type(),
                " for argument 'out'");
    at::native::resize_output(out, at::infer_size_dimvector(abs.sizes(), angle.sizes()));
}

// ---- linear algebra ----

inline at::Tensor polar_result(const at::Tensor& abs, const at::Tensor& angle) {
    return broadcast(abs, angle, c10::toComplexType(abs.scalar_type()));
}

// The batch that two stacks of points have together, then two dimensions.
inline at::Tensor on_common_batch(const at::Tensor& x1, const at::Tensor& x2, int64_t rows, int64_t columns) {
    TORCH_CHECK(x1.dim() >= 2 && x2.dim() >= 2, "cdist only supports at least 2D tensors, X1 got: ", x1.dim(), "D, X2 got: ", x2.dim(), "D");
    auto shape = at::infer_size_dimvector(x1.sizes().slice(0, x1.dim() - 2), x2.sizes().slice(0, x2.dim() - 2));
    shape.push_back(rows);
    shape.push_back(columns);
    return empty_on(index_of(x1), shape, x1.scalar_type());
}
inline at::Tensor distances(const at::Tensor& x1, const at::Tensor& x2) {
    return on_common_batch(x1, x2, x1.dim() < 2 ? 0 : x1.size(-2), x2.dim() < 2 ? 0 : x2.size(-2));
}
// As on the CPU: for the common batch, but of the points' own shape where there is nothing to add up.
inline at::Tensor distance_gradient(const at::Tensor& x1, const at::Tensor& x2) {
    auto gradient = on_common_batch(x1, x2, x1.dim() < 2 ? 0 : x1.size(-2), x1.dim() < 2 ? 0 : x1.size(-1));
    return x1.numel() == 0 || x2.numel() == 0 ? empty_on(index_of(x1), x1.sizes(), x1.scalar_type()) : gradient;
}

}  // namespace dipu
