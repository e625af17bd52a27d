// Images: resampling, windows as columns, padding.
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/col2im.h>
#include <ATen/ops/grid_sampler.h>
#include <ATen/ops/im2col.h>
#include <ATen/ops/pad.h>
#include <ATen/ops/unfold_backward.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <ATen/ops/upsample_bicubic2d_backward.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_bilinear2d_backward.h>
#include <ATen/ops/upsample_linear1d.h>
#include <ATen/ops/upsample_linear1d_backward.h>
#include <ATen/ops/upsample_nearest1d.h>
#include <ATen/ops/upsample_nearest1d_backward.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/upsample_nearest2d_backward.h>
#include <ATen/ops/upsample_nearest3d.h>
#include <ATen/ops/upsample_nearest3d_backward.h>
#include <ATen/ops/upsample_trilinear3d.h>
#include <ATen/ops/upsample_trilinear3d_backward.h>

#include "kernel.h"
#include "results.h"

using namespace dipu_vendor;
using at::Tensor;

namespace {

// ---- interpolation ----

// Samples, channels, then `spatial`.
Dims resized(const Tensor& x, const Dims& spatial) {
    TORCH_CHECK(x.dim() == static_cast<int64_t>(spatial.size()) + 2 && x.dim() <= 5, "an image of ", x.dim(),
                " dimensions cannot get a size of ", spatial.size());
    for (int64_t i = 2; i < x.dim(); ++i) TORCH_CHECK(x.size(i) > 0 && spatial[i - 2] > 0, "an image is empty");
    Dims sizes{x.size(0), x.size(1)};
    sizes.append(spatial.begin(), spatial.end());
    return sizes;
}

// The size of the input: with or without samples and channels.
Dims whole_size(const Tensor& g, const Dims& out, const Dims& in) {
    const bool whole = static_cast<int64_t>(in.size()) == g.dim() && g.dim() > 2;
    const Dims sizes = resized(g, whole ? Dims(in.begin() + 2, in.end()) : in);
    TORCH_CHECK(!whole || sizes == in, "the gradient of the shape ", g.sizes(), " does not fit an input of the shape ",
                at::IntArrayRef(in));
    check_shape(g, resized(g, out), "the gradient");
    return sizes;
}

Tensor nearest(const Tensor& x, const Dims& size) {
    if (x.dim() == 3) return at::upsample_nearest1d(x, size);
    return x.dim() == 4 ? at::upsample_nearest2d(x, size) : at::upsample_nearest3d(x, size);
}

Tensor nearest_backward(const Tensor& g, const Dims& out, const Dims& in) {
    if (g.dim() == 3) return at::upsample_nearest1d_backward(g, out, in);
    return g.dim() == 4 ? at::upsample_nearest2d_backward(g, out, in) : at::upsample_nearest3d_backward(g, out, in);
}

void check_mode(const std::string& mode, int64_t dims) {
    const bool fits = (mode == "linear" && dims == 3) || ((mode == "bilinear" || mode == "bicubic") && dims == 4) ||
                      (mode == "trilinear" && dims == 5);
    TORCH_CHECK(fits, "the mode ", mode, " does not fit an image of ", dims, " dimensions");
}

Tensor linear(const Tensor& x, const Dims& size, bool align_corners, const std::string& mode) {
    check_mode(mode, x.dim());
    if (mode == "linear") return at::upsample_linear1d(x, size, align_corners);
    if (mode == "bilinear") return at::upsample_bilinear2d(x, size, align_corners);
    return mode == "bicubic" ? at::upsample_bicubic2d(x, size, align_corners) : at::upsample_trilinear3d(x, size, align_corners);
}

Tensor linear_backward(const Tensor& g, const Dims& out, const Dims& in, bool align_corners, const std::string& mode) {
    check_mode(mode, g.dim());
    if (mode == "linear") return at::upsample_linear1d_backward(g, out, in, align_corners);
    if (mode == "bilinear") return at::upsample_bilinear2d_backward(g, out, in, align_corners);
    if (mode == "bicubic") return at::upsample_bicubic2d_backward(g, out, in, align_corners);
    return at::upsample_trilinear3d_backward(g, out, in, align_corners);
}

}  // namespace

diopiError_t diopiUpsampleNearest(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiSize_t size) {
    const auto body = [](Tensor& o, Tensor& x, Dims& size) {
        check_shape(o, resized(x, size), "the output");
        write(o, nearest(x, size));
    };
    return run(ctx, __func__, body, out, input, size);
}

// Gradients are added up in float32 where they are half dtypes.
diopiError_t diopiUpsampleNearestBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                          diopiSize_t out_size, diopiSize_t in_size) {
    const auto body = [](Tensor& o, Tensor& g, Dims& out, Dims& in) {
        const Dims sizes = whole_size(g, out, in);
        check_shape(o, sizes, "the output");
        write(o, nearest_backward(upcast(g), out, sizes));
    };
    return run(ctx, __func__, body, grad_input, grad_output, out_size, in_size);
}

diopiError_t diopiUpsampleLinear(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiSize_t size,
                                 bool align_corners, const char* mode) {
    const auto body = [](Tensor& o, Tensor& x, Dims& size, bool align_corners, std::string& mode) {
        check_shape(o, resized(x, size), "the output");
        write(o, linear(x, size, align_corners, mode));
    };
    return run(ctx, __func__, body, out, input, size, align_corners, mode);
}

diopiError_t diopiUpsampleLinearBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                         diopiSize_t out_size, diopiSize_t in_size, bool align_corners, const char* mode) {
    const auto body = [](Tensor& o, Tensor& g, Dims& out, Dims& in, bool align_corners, std::string& mode) {
        const Dims sizes = whole_size(g, out, in);
        check_shape(o, sizes, "the output");
        write(o, linear_backward(upcast(g), out, sizes, align_corners, mode));
    };
    return run(ctx, __func__, body, grad_input, grad_output, out_size, in_size, align_corners, mode);
}

diopiError_t diopiGridSample(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                             diopiConstTensorHandle_t grid, const char* mode) {
    const auto body = [](Tensor& o, Tensor& x, Tensor& grid, std::string& mode) {
        const int64_t kind = mode == "bilinear" ? 0 : mode == "nearest" ? 1 : mode == "bicubic" ? 2 : -1;
        TORCH_CHECK(kind >= 0, "the mode is ", mode, "; bilinear, nearest and bicubic are known");
        write(o, at::grid_sampler(upcast(x), upcast(grid), kind, /*padding_mode=zeros*/ 0, /*align_corners=*/false));
    };
    return run(ctx, __func__, body, out, input, grid, mode);
}

// ---- windows ----

// Two numbers each, small enough to calculate with.
static void check_windows(std::initializer_list<const Dims*> lists) {
    for (const Dims* list : lists) {
        TORCH_CHECK(list->size() == 2, "a window in an image needs 2 numbers, not ", list->size());
        for (int64_t number : *list)
            TORCH_CHECK(number >= 0 && number < int64_t{1} << 30, "a window of ", number, " pixels is not possible");
    }
}

diopiError_t diopiIm2Col(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiSize_t kernel_size,
                         diopiSize_t dilation, diopiSize_t padding, diopiSize_t stride) {
    const auto body = [](Tensor& o, Tensor& x, Dims& kernel, Dims& dilation, Dims& padding, Dims& stride) {
        check_windows({&kernel, &dilation, &padding, &stride});
        write(o, at::im2col(x, kernel, dilation, padding, stride));
    };
    return run(ctx, __func__, body, out, input, kernel_size, dilation, padding, stride);
}

diopiError_t diopiCol2Im(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiSize_t output_size,
                         diopiSize_t kernel_size, diopiSize_t dilation, diopiSize_t padding, diopiSize_t stride) {
    const auto body = [](Tensor& o, Tensor& x, Dims& size, Dims& kernel, Dims& dilation, Dims& padding, Dims& stride) {
        TORCH_CHECK(size.size() == 2 && o.dim() >= 3 && o.sizes().slice(o.dim() - 2) == at::IntArrayRef(size), "the output has the shape ",
                    o.sizes(), ", but its size is to be ", at::IntArrayRef(size));
        check_windows({&kernel, &dilation, &padding, &stride});
        write(o, at::col2im(upcast(x), size, kernel, dilation, padding, stride));
    };
    return run(ctx, __func__, body, out, input, output_size, kernel_size, dilation, padding, stride);
}

diopiError_t diopiUnfold(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t dim, int64_t size,
                         int64_t step) {
    const auto body = [](Tensor& o, Tensor& x, int64_t dim, int64_t size, int64_t step) { write(o, x.unfold(dim, size, step)); };
    return run(ctx, __func__, body, out, input, dim, size, step);
}

diopiError_t diopiUnfoldBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                 diopiSize_t input_sizes, int64_t dim, int64_t size, int64_t step) {
    const auto body = [](Tensor& o, Tensor& g, Dims& sizes, int64_t dim, int64_t size, int64_t step) {
        check_shape(o, sizes, "the output");
        const Tensor windows = o.unfold(dim, size, step);  // also checks the numbers
        check_shape(g, windows.sizes(), "the gradient");
        write(o, at::unfold_backward(upcast(g), sizes, dim, size, step));
    };
    return run(ctx, __func__, body, grad_input, grad_output, input_sizes, dim, size, step);
}

// The shape is known before anything is allocated: numbers may be absurd.
diopiError_t diopiPad(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiSize_t pad, const char* mode,
                      const double* value) {
    const auto body = [](Tensor& o, Tensor& x, Dims& pad, std::string& mode, std::optional<double> value) {
        const auto padded = static_cast<int64_t>(pad.size() / 2);
        TORCH_CHECK(pad.size() % 2 == 0 && padded <= x.dim() && o.dim() == x.dim(), "a padding of ", pad.size(),
                    " numbers and an output of ", o.dim(), " dimensions do not fit an input of ", x.dim(), " dimensions");
        for (int64_t i = 0; i < padded; ++i) {
            const int64_t axis = x.dim() - 1 - i;
            TORCH_CHECK(o.size(axis) - x.size(axis) - pad[2 * i] == pad[2 * i + 1], "dimension ", axis, " of the output has the length ",
                        o.size(axis), ", which is not that of the padded input");
        }
        write(o, at::pad(x, pad, mode, value));
    };
    return run(ctx, __func__, body, out, input, pad, mode, value);
}
