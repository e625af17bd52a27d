// Pooling whose kind is a text, "max" or "avg".
#include <ATen/core/Tensor.h>

#include "kernel.h"
#include "pooling.h"
#include "results.h"

using namespace dipu_vendor;
using at::Tensor;

namespace {

bool is_maximum(const std::string& mode) {
    TORCH_CHECK(mode == "max" || mode == "avg", "the mode is ", mode, "; max and avg are known");
    return mode == "max";
}

Dims ones_if_empty(const Dims& list) { return list.empty() ? Dims(1, 1) : list; }

template <int64_t kSpatial>
diopiError_t pool(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiConstTensorHandle_t input, const char* mode,
                  diopiSize_t ksize, diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation, bool ceil_mode, bool exclusive,
                  bool adaptive, diopiSize_t output_size) {
    const auto body = [](Tensor& o, Tensor& x, std::string& mode, Dims& kernel, Dims& stride, Dims& padding, Dims& dilation, bool ceil_mode,
                         bool exclusive, bool adaptive, Dims& size) {
        const bool maximum = is_maximum(mode);
        if (adaptive) {
            TORCH_CHECK(o.dim() > kSpatial && o.sizes().slice(o.dim() - kSpatial) == at::IntArrayRef(size), "the output has the shape ",
                        o.sizes(), ", but its size is to be ", at::IntArrayRef(size));
            return write(o, maximum ? std::get<0>(adaptive_max_pool(x, kSpatial, size)) : adaptive_average_pool(x, kSpatial, size));
        }
        const Windows how = windows(kSpatial, kernel, stride, padding, ones_if_empty(dilation), ceil_mode);
        write(o, maximum ? std::get<0>(max_pool(x, how)) : average_pool(x, how, {!exclusive, std::nullopt}));
    };
    return run(ctx, name, body, out, input, mode, ksize, stride, padding, dilation, ceil_mode, exclusive, adaptive, output_size);
}

// Without indices the maxima are looked for again.
template <int64_t kSpatial>
diopiError_t pool_backward(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                           diopiConstTensorHandle_t input, const char* mode, diopiSize_t ksize, diopiSize_t stride, diopiSize_t padding,
                           diopiSize_t dilation, bool ceil_mode, bool exclusive, bool adaptive, diopiConstTensorHandle_t indices) {
    const auto body = [](Tensor& o, Tensor& g, Tensor& x, std::string& mode, Dims& kernel, Dims& stride, Dims& padding, Dims& dilation,
                         bool ceil_mode, bool exclusive, bool adaptive, std::optional<Tensor>& indices) {
        const bool maximum = is_maximum(mode);
        if (maximum && indices) return write(o, scatter_to_maxima(g, x, *indices, kSpatial));
        if (adaptive) {
            if (!maximum) return write(o, adaptive_average_pool_backward(g, x, kSpatial));
            TORCH_CHECK(g.dim() > kSpatial, "the gradient has only ", g.dim(), " dimensions");
            const Dims size(g.sizes().end() - kSpatial, g.sizes().end());
            return write(o, scatter_to_maxima(g, x, std::get<1>(adaptive_max_pool(x, kSpatial, size)), kSpatial));
        }
        const Windows how = windows(kSpatial, kernel, stride, padding, ones_if_empty(dilation), ceil_mode);
        if (!maximum) return write(o, average_pool_backward(g, x, how, {!exclusive, std::nullopt}));
        write(o, scatter_to_maxima(g, x, std::get<1>(max_pool(x, how)), kSpatial));
    };
    return run(ctx, name, body, grad_input, grad_output, input, mode, ksize, stride, padding, dilation, ceil_mode, exclusive, adaptive,
               maybe(indices));
}

}  // namespace

#define POOLING(N)                                                                                                                       \
    diopiError_t diopiPool##N##d(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, const char* mode,    \
                                 diopiSize_t ksize, diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation, const bool ceil_mode, \
                                 const bool exclusive, const bool adaptive, diopiSize_t output_size) {                                   \
        return pool<N>(ctx, __func__, out, input, mode, ksize, stride, padding, dilation, ceil_mode, exclusive, adaptive, output_size);  \
    }                                                                                                                                    \
    diopiError_t diopiPool##N##dBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output, \
                                         diopiConstTensorHandle_t input, const char* mode, diopiSize_t ksize, diopiSize_t stride,        \
                                         diopiSize_t padding, diopiSize_t dilation, const bool ceil_mode, const bool exclusive,          \
                                         const bool adaptive, diopiConstTensorHandle_t indices) {                                        \
        return pool_backward<N>(ctx, __func__, grad_input, grad_output, input, mode, ksize, stride, padding, dilation, ceil_mode,        \
                                exclusive, adaptive, indices);                                                                           \
    }

POOLING(1)
POOLING(2)
POOLING(3)
