// Convolutions of float32 with channels last by own kernels: sums of products, one for each tap.
#pragma once
#include <ATen/core/ivalue.h>

#include <memory>
#include <optional>
#include <vector>

namespace dicp {

class Panels;

/// What does not change from call to call.
struct ConvolutionSettings {
    int64_t stride[2], padding[2], dilation[2];
};

/// Of the arguments of aten::convolution; none where own kernels do not serve them.
std::optional<ConvolutionSettings> convolution_settings(const std::vector<c10::IValue>& arguments);

/// Sizes and strides are those of torch's tensors, channels in second place.
struct Convolution {
    const float* x;
    const int64_t *x_sizes, *x_strides;
    const float* weight;
    const int64_t *weight_sizes, *weight_strides;
    const float* bias;  // or null
    float* out;
    const int64_t *out_sizes, *out_strides;
};

/// Whether these strides are served.
bool serves(const Convolution& convolution);

/// The weight in the order in which the kernels read it.
std::shared_ptr<const Panels> packed_weight(const Convolution& convolution, const ConvolutionSettings& settings);

void convolve(const Convolution& convolution, const ConvolutionSettings& settings, const Panels& weight);

}  // namespace dicp
