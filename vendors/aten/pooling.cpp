#include "pooling.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_adaptive_avg_pool2d.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward.h>
#include <ATen/ops/_adaptive_avg_pool3d.h>
#include <ATen/ops/_adaptive_avg_pool3d_backward.h>
#include <ATen/ops/adaptive_max_pool2d.h>
#include <ATen/ops/adaptive_max_pool3d.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/avg_pool2d_backward.h>
#include <ATen/ops/avg_pool3d.h>
#include <ATen/ops/avg_pool3d_backward.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool3d_with_indices.h>
#include <ATen/ops/zeros.h>

#include "results.h"

namespace dipu_vendor {
namespace {

using at::Tensor;

constexpr int64_t kMost = int64_t{1} << 30;

Dims expanded(const Dims& list, int64_t spatial, int64_t least, const char* name) {
    const auto length = static_cast<int64_t>(list.size());
    TORCH_CHECK(length == spatial || length == 1, name, " needs ", spatial, " numbers, but has ", length);
    for (int64_t number : list)
        TORCH_CHECK(number >= least && number <= kMost, name, " is ", number, ", which is not between ", least, " and ", kMost);
    return length == spatial ? list : Dims(spatial, list[0]);
}

void check_image(const Tensor& x, int64_t spatial) {
    TORCH_CHECK(x.dim() == spatial + 1 || x.dim() == spatial + 2, "an image has ", spatial + 1, " or ", spatial + 2,
                " dimensions here, not ", x.dim());
    for (int64_t i = x.dim() - spatial - 1; i < x.dim(); ++i) TORCH_CHECK(x.size(i) > 0, "an image of the shape ", x.sizes(), " is empty");
}

// Samples and channels of a gradient are those of the image.
void check_planes(const Tensor& g, const Tensor& x, int64_t spatial) {
    const int64_t planes = x.dim() - spatial;
    TORCH_CHECK(g.dim() == x.dim() && g.sizes().slice(0, planes) == x.sizes().slice(0, planes), "the gradient of the shape ", g.sizes(),
                " does not fit an input of the shape ", x.sizes());
}

// In other layouts ATen's kernels know neither small integers nor three dimensions without samples.
// A clone also where the strides of single elements only look like another layout.
Tensor plain(const Tensor& x, int64_t spatial) {
    return spatial == 2 && x.is_floating_point() ? x : x.clone(at::MemoryFormat::Contiguous);
}

// One dimension is a row of an image with one row.
Tensor as_rows(const Tensor& x) { return x.unsqueeze(-2); }
Dims as_rows(const Dims& list, int64_t first) { return {first, list[0]}; }
Windows as_rows(const Windows& how) {
    return {2, as_rows(how.kernel, 1), as_rows(how.stride, 1), as_rows(how.padding, 0), as_rows(how.dilation, 1), how.ceil_mode};
}
std::tuple<Tensor, Tensor> without_rows(const std::tuple<Tensor, Tensor>& both) {
    return {std::get<0>(both).squeeze(-2), std::get<1>(both).squeeze(-2)};
}

Dims checked_size(const Dims& size, int64_t spatial) {
    TORCH_CHECK(static_cast<int64_t>(size.size()) == spatial, "output_size needs ", spatial, " numbers, but has ", size.size());
    for (int64_t length : size) TORCH_CHECK(length > 0 && length <= kMost, "an output of ", length, " elements is not possible");
    return size;
}

}  // namespace

Windows windows(int64_t spatial, const Dims& kernel, const Dims& stride, const Dims& padding, const Dims& dilation, bool ceil_mode) {
    const Dims size = expanded(kernel, spatial, 1, "kernel_size");
    return {spatial,
            size,
            stride.empty() ? size : expanded(stride, spatial, 1, "stride"),
            expanded(padding, spatial, 0, "padding"),
            expanded(dilation, spatial, 1, "dilation"),
            ceil_mode};
}

std::tuple<Tensor, Tensor> max_pool(const Tensor& image, const Windows& how) {
    check_image(image, how.spatial);
    const Tensor x = plain(image, how.spatial);
    if (how.spatial == 1) return without_rows(max_pool(as_rows(x), as_rows(how)));
    if (how.spatial == 2) return at::max_pool2d_with_indices(x, how.kernel, how.stride, how.padding, how.dilation, how.ceil_mode);
    return at::max_pool3d_with_indices(x, how.kernel, how.stride, how.padding, how.dilation, how.ceil_mode);
}

Tensor average_pool(const Tensor& x, const Windows& how, const Average& average) {
    check_image(x, how.spatial);
    if (how.spatial == 1) return average_pool(as_rows(x), as_rows(how), average).squeeze(-2);
    if (how.spatial == 2)
        return at::avg_pool2d(x, how.kernel, how.stride, how.padding, how.ceil_mode, average.count_include_pad, average.divisor);
    return at::avg_pool3d(upcast(plain(x, 3)), how.kernel, how.stride, how.padding, how.ceil_mode, average.count_include_pad,
                          average.divisor);
}

Tensor average_pool_backward(const Tensor& g, const Tensor& x, const Windows& how, const Average& average) {
    check_image(x, how.spatial), check_image(g, how.spatial), check_planes(g, x, how.spatial);
    if (how.spatial == 1) return average_pool_backward(as_rows(g), as_rows(x), as_rows(how), average).squeeze(-2);
    const auto backward = how.spatial == 2 ? &at::avg_pool2d_backward : &at::avg_pool3d_backward;
    const Tensor gradient = upcast(plain(g, how.spatial)), image = upcast(plain(x, how.spatial));
    return backward(gradient, image, how.kernel, how.stride, how.padding, how.ceil_mode, average.count_include_pad, average.divisor);
}

std::tuple<Tensor, Tensor> adaptive_max_pool(const Tensor& x, int64_t spatial, const Dims& size) {
    check_image(x, spatial), checked_size(size, spatial);
    if (spatial == 1) return without_rows(at::adaptive_max_pool2d(as_rows(x), as_rows(size, 1)));
    return spatial == 2 ? at::adaptive_max_pool2d(x, size) : at::adaptive_max_pool3d(plain(x, 3), size);
}

Tensor adaptive_average_pool(const Tensor& x, int64_t spatial, const Dims& size) {
    check_image(x, spatial), checked_size(size, spatial);
    if (spatial == 1) return at::_adaptive_avg_pool2d(as_rows(x), as_rows(size, 1)).squeeze(-2);
    return spatial == 2 ? at::_adaptive_avg_pool2d(x, size) : at::_adaptive_avg_pool3d(upcast(plain(x, 3)), size);
}

Tensor adaptive_average_pool_backward(const Tensor& g, const Tensor& x, int64_t spatial) {
    check_image(x, spatial), check_image(g, spatial);
    check_planes(g, x, spatial);
    if (spatial == 1) return at::_adaptive_avg_pool2d_backward(as_rows(upcast(g)), as_rows(upcast(x))).squeeze(-2);
    if (spatial == 2) return at::_adaptive_avg_pool2d_backward(upcast(g), upcast(x));
    return at::_adaptive_avg_pool3d_backward(upcast(plain(g, 3)), upcast(plain(x, 3)));
}

Tensor scatter_to_maxima(const Tensor& g, const Tensor& x, const Tensor& indices, int64_t spatial) {
    check_image(x, spatial);
    check_same_shape(g, indices, "the gradient and the indices");
    check_planes(g, x, spatial);
    const int64_t planes = x.dim() - spatial;
    Dims flat(x.sizes().begin(), x.sizes().begin() + planes);
    flat.push_back(c10::multiply_integers(x.sizes().slice(planes)));
    const Tensor gradient = upcast(g).flatten(planes), total = at::zeros(flat, gradient.options());
    return total.scatter_add(-1, indices.flatten(planes).to(at::kLong), gradient).view(x.sizes());
}

}  // namespace dipu_vendor
