// Pooling in one, two and three dimensions: what the kernels of ops_pooling.cpp and ops_pooling_text.cpp have in common.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "kernel.h"

namespace dipu_vendor {

// Windows that slide over the last `spatial` dimensions of an image.
struct Windows {
    int64_t spatial;
    Dims kernel, stride, padding, dilation;  // one number for each dimension; no stride: the kernel's size
    bool ceil_mode;
};
// Checks the lists; a list of one number stands for all dimensions.
Windows windows(int64_t spatial, const Dims& kernel, const Dims& stride, const Dims& padding, const Dims& dilation, bool ceil_mode);

struct Average {
    bool count_include_pad;
    std::optional<int64_t> divisor;
};

// Results in a dtype that ATen's CPU can do; values and indices.
std::tuple<at::Tensor, at::Tensor> max_pool(const at::Tensor& x, const Windows& how);
at::Tensor average_pool(const at::Tensor& x, const Windows& how, const Average& average);
at::Tensor average_pool_backward(const at::Tensor& g, const at::Tensor& x, const Windows& how, const Average& average);
std::tuple<at::Tensor, at::Tensor> adaptive_max_pool(const at::Tensor& x, int64_t spatial, const Dims& size);
at::Tensor adaptive_average_pool(const at::Tensor& x, int64_t spatial, const Dims& size);
at::Tensor adaptive_average_pool_backward(const at::Tensor& g, const at::Tensor& x, int64_t spatial);

// The gradient of any maximum: every output's gradient goes to its index in the plane of the image.
at::Tensor scatter_to_maxima(const at::Tensor& g, const at::Tensor& x, const at::Tensor& indices, int64_t spatial);

}  // namespace dipu_vendor
