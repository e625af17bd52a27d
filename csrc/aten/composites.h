// Operators that torch asks of a device under a name the CPU does not know, expressed by ones it does.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>

#include "../runtime/vendor.h"

namespace dipu {

// Convolutions that no DIOPI entry covers: the CPU's, by alias or copies.
DIPU_API at::Tensor convolution_fallback(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                          at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                                          at::IntArrayRef output_padding, int64_t groups);
DIPU_API std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward_fallback(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> output_mask);

// What nll_loss_forward gives beside the loss: the sum of the weights of the targets that count.
DIPU_API at::Tensor total_weight_of(const at::Tensor& input, const at::Tensor& target, const std::optional<at::Tensor>& weight,
                                    int64_t reduction, int64_t ignore_index);

}  // namespace dipu
