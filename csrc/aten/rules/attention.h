// Outputs of attention and other fused operators; the table names these rules.
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_rms_norm_compositeimplicitautograd_dispatch.h>
#include <diopi/functions_ext.h>

#include <array>
#include <cstddef>
#include <optional>
#include <tuple>

#include "../outputs.h"

namespace dipu {

// A tensor that an ATen operator does not have.
inline diopiTensorHandle_t handle(std::nullptr_t) { return nullptr; }
inline double or_number(std::optional<double> number, double otherwise) { return number.value_or(otherwise); }

// One number for each row that is normalised, in the precision of the sums.
inline at::Tensor rms_stat(const at::Tensor& input, at::IntArrayRef normalized_shape) {
    const at::Tensor like = layer_norm_stat(input, normalized_shape);
    return full_precision(input) ? like : empty_on(index_of(input), like.sizes(), at::kFloat);
}

// What no DIOPI entry covers: torch's own composition, operator by operator on the device.
inline std::tuple<at::Tensor, at::Tensor> rms_norm_fallback(const at::Tensor& input, at::IntArrayRef normalized_shape,
                                                             const std::optional<at::Tensor>& weight, std::optional<double> eps) {
    return at::compositeimplicitautograd::_fused_rms_norm(input, normalized_shape, weight, eps);
}

// torch has a kernel for this on a few devices only and none on the CPU, so this is the definition.
inline std::tuple<at::Tensor, at::Tensor> rms_norm_backward_fallback(const at::Tensor& grad_out, const at::Tensor& input,
                                                                      at::IntArrayRef normalized_shape, const at::Tensor& rstd,
                                                                      const std::optional<at::Tensor>& weight,
                                                                      std::array<bool, 2> output_mask) {
    const auto wide = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16 ? at::kFloat : input.scalar_type();
    const bool weighted = weight && weight->defined();
    const at::Tensor grad = grad_out.to(wide), inverse = rstd.to(wide), normalized = input.to(wide) * inverse;
    at::DimVector rows, columns;
    for (int64_t dim = 0; dim < input.dim(); ++dim)
        (dim < input.dim() - static_cast<int64_t>(normalized_shape.size()) ? rows : columns).push_back(dim);
    at::Tensor grad_input, grad_weight;
    if (output_mask[0]) {
        const at::Tensor scaled = weighted ? grad * weight->to(wide) : grad;
        grad_input = ((scaled - normalized * (scaled * normalized).mean(columns, /*keepdim=*/true)) * inverse).to(input.scalar_type());
    }
    if (output_mask[1] && weighted) {
        const at::Tensor product = grad * normalized;
        grad_weight = (rows.empty() ? product : product.sum(rows)).to(weight->scalar_type());
    }
    return {grad_input, grad_weight};
}

}  // namespace dipu
