// Boxes in images: which to keep, and their content resampled. ATen has no kernels for these.
#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernel.h"
#include "results.h"

using namespace dipu_vendor;
using at::Tensor;

namespace {

template <class T>
struct Box {
    T left, top, right, bottom;

    explicit Box(const T* corners) : left(corners[0]), top(corners[1]), right(corners[2]), bottom(corners[3]) {}
    T area() const { return (right - left) * (bottom - top); }
    T common(const Box& other) const {
        const T width = std::min(right, other.right) - std::max(left, other.left);
        const T height = std::min(bottom, other.bottom) - std::max(top, other.top);
        return std::max<T>(width, 0) * std::max<T>(height, 0);
    }
};

Tensor kept(const Tensor& boxes, const Tensor& confidence, double threshold) {
    TORCH_CHECK(boxes.dim() == 2 && boxes.size(1) == 4, "boxes have the shape [N, 4], not ", boxes.sizes());
    TORCH_CHECK(confidence.dim() == 1 && confidence.size(0) == boxes.size(0), boxes.size(0), " boxes need as many confidences, not ",
                confidence.sizes());
    const Tensor order = std::get<1>(confidence.sort(/*stable=*/true, /*dim=*/0, /*descending=*/true)).contiguous();
    const Tensor corners = upcast(boxes).contiguous();
    std::vector<int64_t> chosen;
    AT_DISPATCH_FLOATING_TYPES(corners.scalar_type(), "nms", [&] {
        const scalar_t* data = corners.const_data_ptr<scalar_t>();
        const int64_t* next = order.const_data_ptr<int64_t>();
        for (int64_t n = 0; n < order.numel(); ++n) {
            const Box<scalar_t> box(data + 4 * next[n]);
            const bool hidden = std::any_of(chosen.begin(), chosen.end(), [&](int64_t other) {
                const Box<scalar_t> stronger(data + 4 * other);
                const scalar_t common = box.common(stronger);
                return common / (stronger.area() + box.area() - common) > threshold;
            });
            if (!hidden) chosen.push_back(next[n]);
        }
    });
    Tensor result = at::empty({static_cast<int64_t>(chosen.size())}, at::kLong);
    std::copy(chosen.begin(), chosen.end(), result.data_ptr<int64_t>());
    return result;
}

// ---- regions of interest ----

struct Regions {
    double scale;
    int64_t pooled_height, pooled_width, ratio;
    bool aligned;
};

constexpr int64_t kMostPoints = 1 << 12;  // of one bin, along one axis

// The four pixels around a point, and how much each counts; none outside of the image.
template <class T>
struct Corners {
    int64_t offset[4];
    T weight[4];
    int count = 0;

    Corners(T y, T x, int64_t height, int64_t width) {
        if (!(y >= -1 && y <= static_cast<T>(height) && x >= -1 && x <= static_cast<T>(width))) return;
        const auto [top, bottom, fy] = neighbours(std::max<T>(y, 0), height);
        const auto [left, right, fx] = neighbours(std::max<T>(x, 0), width);
        count = 4;
        offset[0] = top * width + left, weight[0] = (1 - fy) * (1 - fx);
        offset[1] = top * width + right, weight[1] = (1 - fy) * fx;
        offset[2] = bottom * width + left, weight[2] = fy * (1 - fx);
        offset[3] = bottom * width + right, weight[3] = fy * fx;
    }

   private:
    static std::tuple<int64_t, int64_t, T> neighbours(T coordinate, int64_t length) {
        const auto below = static_cast<int64_t>(coordinate);
        if (below >= length - 1) return {length - 1, length - 1, T(0)};
        return {below, below + 1, coordinate - static_cast<T>(below)};
    }
};

// Calls `visit(image, bin, corners, share)` for every point of every bin of one region.
template <class T, class Visit>
void each_point(const T* region, const Regions& how, at::IntArrayRef image_sizes, const Visit& visit) {
    TORCH_CHECK(region[0] >= 0 && region[0] < static_cast<T>(image_sizes[0]), "a region is of image ", static_cast<double>(region[0]),
                ", but there are ", image_sizes[0]);
    const T scale = static_cast<T>(how.scale), shift = how.aligned ? T(0.5) : T(0);
    const T left = region[1] * scale - shift, top = region[2] * scale - shift;
    T width = region[3] * scale - shift - left, height = region[4] * scale - shift - top;
    if (!how.aligned) width = std::max<T>(width, 1), height = std::max<T>(height, 1);
    const T bin_height = height / static_cast<T>(how.pooled_height), bin_width = width / static_cast<T>(how.pooled_width);
    const auto points = [&](T bin) {
        const T count = how.ratio > 0 ? static_cast<T>(how.ratio) : std::ceil(bin);
        TORCH_CHECK(count <= static_cast<T>(kMostPoints), "a bin of a region needs more than ", kMostPoints, " points");
        return static_cast<int64_t>(count);
    };
    const int64_t rows = points(bin_height), columns = points(bin_width);
    if (rows <= 0 || columns <= 0) return;
    for (int64_t bin = 0; bin < how.pooled_height * how.pooled_width; ++bin) {
        for (int64_t point = 0; point < rows * columns; ++point) {
            const T y = top + (static_cast<T>(bin / how.pooled_width) + (static_cast<T>(point / columns) + T(0.5)) / rows) * bin_height;
            const T x = left + (static_cast<T>(bin % how.pooled_width) + (static_cast<T>(point % columns) + T(0.5)) / columns) * bin_width;
            visit(static_cast<int64_t>(region[0]), bin, Corners<T>(y, x, image_sizes[2], image_sizes[3]), T(1) / (rows * columns));
        }
    }
}

void check_regions(const Tensor& rois, const Regions& how, at::IntArrayRef image, at::IntArrayRef pooled) {
    TORCH_CHECK(rois.dim() == 2 && rois.size(1) == 5, "regions have the shape [K, 5], not ", rois.sizes());
    TORCH_CHECK(image.size() == 4, "images have 4 dimensions, not ", image.size());
    TORCH_CHECK(how.ratio <= kMostPoints, "sampling_ratio is ", how.ratio, ", more than ", kMostPoints);
    const int64_t expected[] = {rois.size(0), image[1], how.pooled_height, how.pooled_width};
    TORCH_CHECK(pooled == at::IntArrayRef(expected), "the pooled regions have the shape ", pooled, " instead of ",
                at::IntArrayRef(expected));
}

Tensor roi_align(const Tensor& input, const Tensor& rois, const Regions& how, at::IntArrayRef result_sizes) {
    check_regions(rois, how, input.sizes(), result_sizes);
    const Tensor image = upcast(input).contiguous(), regions = rois.to(image.scalar_type()).contiguous();
    Tensor result = at::zeros(result_sizes, image.options());
    const int64_t channels = image.size(1), pixels = image.size(2) * image.size(3), bins = how.pooled_height * how.pooled_width;
    AT_DISPATCH_FLOATING_TYPES(image.scalar_type(), "roi_align", [&] {
        const scalar_t* in = image.const_data_ptr<scalar_t>();
        scalar_t* out = result.data_ptr<scalar_t>();
        for (int64_t k = 0; k < regions.size(0); ++k) {
            each_point(regions.const_data_ptr<scalar_t>() + 5 * k, how, image.sizes(),
                       [&](int64_t n, int64_t bin, const Corners<scalar_t>& corners, scalar_t share) {
                           for (int64_t c = 0; c < channels; ++c)
                               for (int i = 0; i < corners.count; ++i)
                                   out[(k * channels + c) * bins + bin] +=
                                       share * corners.weight[i] * in[(n * channels + c) * pixels + corners.offset[i]];
                       });
        }
    });
    return result;
}

Tensor roi_align_backward(const Tensor& grad, const Tensor& rois, const Regions& how, at::IntArrayRef image_sizes) {
    check_regions(rois, how, image_sizes, grad.sizes());
    const Tensor gradient = upcast(grad).contiguous(), regions = rois.to(gradient.scalar_type()).contiguous();
    Tensor result = at::zeros(image_sizes, gradient.options());
    const int64_t channels = image_sizes[1], pixels = image_sizes[2] * image_sizes[3], bins = how.pooled_height * how.pooled_width;
    AT_DISPATCH_FLOATING_TYPES(gradient.scalar_type(), "roi_align_backward", [&] {
        const scalar_t* in = gradient.const_data_ptr<scalar_t>();
        scalar_t* out = result.data_ptr<scalar_t>();
        for (int64_t k = 0; k < regions.size(0); ++k) {
            each_point(regions.const_data_ptr<scalar_t>() + 5 * k, how, image_sizes,
                       [&](int64_t n, int64_t bin, const Corners<scalar_t>& corners, scalar_t share) {
                           for (int64_t c = 0; c < channels; ++c)
                               for (int i = 0; i < corners.count; ++i)
                                   out[(n * channels + c) * pixels + corners.offset[i]] +=
                                       share * corners.weight[i] * in[(k * channels + c) * bins + bin];
                       });
        }
    });
    return result;
}

}  // namespace

diopiError_t diopiNms(diopiContextHandle_t ctx, diopiTensorHandle_t* out, diopiConstTensorHandle_t boxes,
                      diopiConstTensorHandle_t confidence, double iou_threshold) {
    return run_now(ctx, __func__, [&] {
        TORCH_CHECK(out, "the pointer for the result is NULL");
        *out = require_like(ctx, kept(view(boxes), view(confidence), iou_threshold));
    });
}

diopiError_t diopiRoiAlign(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiConstTensorHandle_t rois,
                           double spatial_scale, int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio, bool aligned) {
    const auto body = [](Tensor& o, Tensor& x, Tensor& rois, double scale, int64_t height, int64_t width, int64_t ratio, bool aligned) {
        write(o, roi_align(x, rois, {scale, height, width, ratio, aligned}, o.sizes()));
    };
    return run(ctx, __func__, body, out, input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned);
}

diopiError_t diopiRoiAlignBackward(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t grad,
                                   diopiConstTensorHandle_t rois, double spatial_scale, int64_t pooled_height, int64_t pooled_width,
                                   int64_t batch_size, int64_t channels, int64_t height, int64_t width, int64_t sampling_ratio,
                                   bool aligned) {
    const auto body = [](Tensor& o, Tensor& g, Tensor& rois, Dims& sizes, double scale, int64_t height, int64_t width, int64_t ratio,
                         bool aligned) {
        TORCH_CHECK(o.sizes() == at::IntArrayRef(sizes), "the output has the shape ", o.sizes(), " instead of ", at::IntArrayRef(sizes));
        write(o, roi_align_backward(g, rois, {scale, height, width, ratio, aligned}, o.sizes()));
    };
    const int64_t sizes[] = {batch_size, channels, height, width};
    return run(ctx, __func__, body, out, grad, rois, diopiSize_t{sizes, 4}, spatial_scale, pooled_height, pooled_width, sampling_ratio,
               aligned);
}
