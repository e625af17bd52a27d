// Pooling.
#include "chip.h"

#include <ATen/core/Tensor.h>
#include KERNELS(adaptive_avg_pool2d)
#include KERNELS(avg_pool2d)
#include KERNELS(max_pool2d_with_indices)

#include "kernel.h"
#include "pooling.h"
#include "reordered.h"
#include "results.h"

using namespace dipu_vendor;
using at::Tensor;

// Whether ATen's kernels for two dimensions can write the output themselves: laid out as the input is.
static bool direct(const Tensor& o, const Tensor& x) {
    return o.scalar_type() == x.scalar_type() && o.is_contiguous() && x.is_contiguous() && x.numel() > 0;
}

// ---- maxima ----

template <int64_t kSpatial>
static diopiError_t maxima(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiTensorHandle_t indices,
                           diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride, diopiSize_t padding,
                           diopiSize_t dilation, bool ceil_mode) {
    const auto body = [](Tensor& o, std::optional<Tensor>& i, Tensor& x, Dims& kernel, Dims& stride, Dims& padding, Dims& dilation,
                         bool ceil_mode) {
        const Windows how = windows(kSpatial, kernel, stride, padding, dilation, ceil_mode);
        if (kSpatial == 2 && i && direct(o, x) && i->is_contiguous() && i->scalar_type() == at::kLong)
            return void(kernels::max_pool2d_with_indices_out(o, *i, x, how.kernel, how.stride, how.padding, how.dilation, ceil_mode));
        const auto [values, indices] = max_pool(x, how);
        write(o, values), write(i, indices);
    };
    return run(ctx, name, body, out, maybe(indices), input, kernel_size, stride, padding, dilation, ceil_mode);
}

// The windows are known from the indices already.
template <int64_t kSpatial>
static diopiError_t maxima_backward(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t grad_input,
                                    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
                                    diopiConstTensorHandle_t indices) {
    const auto body = [](Tensor& o, Tensor& g, Tensor& x, Tensor& i) { write(o, scatter_to_maxima(g, x, i, kSpatial)); };
    return run(ctx, name, body, grad_input, grad_output, input, indices);
}

template <int64_t kSpatial>
static diopiError_t adaptive_maxima(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiTensorHandle_t indices,
                                    diopiConstTensorHandle_t input, diopiSize_t output_size) {
    const auto body = [](Tensor& o, std::optional<Tensor>& i, Tensor& x, Dims& size) {
        TORCH_CHECK(o.dim() == x.dim() && o.dim() > kSpatial && o.sizes().slice(o.dim() - kSpatial) == at::IntArrayRef(size),
                    "the output has the shape ", o.sizes(), ", but its size is to be ", at::IntArrayRef(size));
        const auto [values, indices] = adaptive_max_pool(x, kSpatial, size);
        write(o, values), write(i, indices);
    };
    return run(ctx, name, body, out, maybe(indices), input, output_size);
}

#define MAXIMA(N)                                                                                                                        \
    diopiError_t diopiMaxPool##N##d(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,                   \
                                    diopiSize_t kernel_size, diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation,              \
                                    bool ceil_mode) {                                                                                    \
        return maxima<N>(ctx, __func__, out, nullptr, input, kernel_size, stride, padding, dilation, ceil_mode);                         \
    }                                                                                                                                    \
    diopiError_t diopiMaxPool##N##dWithIndices(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t indices,           \
                                               diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride,              \
                                               diopiSize_t padding, diopiSize_t dilation, bool ceil_mode) {                              \
        return maxima<N>(ctx, __func__, out, indices, input, kernel_size, stride, padding, dilation, ceil_mode);                         \
    }                                                                                                                                    \
    diopiError_t diopiMaxPool##N##dBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,                                    \
                                            diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,                        \
                                            diopiSize_t kernel_size, diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation,      \
                                            bool ceil_mode, diopiConstTensorHandle_t indices) {                                          \
        return maxima_backward<N>(ctx, __func__, grad_input, grad_output, input, indices);                                               \
    }                                                                                                                                    \
    diopiError_t diopiAdaptiveMaxPool##N##d(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,           \
                                            diopiSize_t output_size) {                                                                   \
        return adaptive_maxima<N>(ctx, __func__, out, nullptr, input, output_size);                                                      \
    }                                                                                                                                    \
    diopiError_t diopiAdaptiveMaxPool##N##dWithIndices(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t indices,   \
                                                       diopiConstTensorHandle_t input, diopiSize_t output_size) {                        \
        return adaptive_maxima<N>(ctx, __func__, out, indices, input, output_size);                                                      \
    }                                                                                                                                    \
    diopiError_t diopiAdaptiveMaxPool##N##dBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,                            \
                                                    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,                \
                                                    diopiConstTensorHandle_t indices) {                                                  \
        return maxima_backward<N>(ctx, __func__, grad_input, grad_output, input, indices);                                               \
    }

MAXIMA(1)
MAXIMA(2)
MAXIMA(3)

// ---- averages ----

static split_sums::Pooling split(const Windows& how, const Average& average) {
    return {how.kernel, how.stride, how.padding, average.count_include_pad, average.divisor};
}

static void average(Tensor& o, const Tensor& x, const Windows& how, const Average& kind) {
    TORCH_CHECK(!kind.divisor || *kind.divisor != 0, "divisor must be not zero");
    if (how.spatial == 2 && reordered()) {
        check_same_shape(o, average_pool(x, how, kind), "the output and the result");
        return split_sums::avg_pool2d(o, x, split(how, kind));
    }
    if (how.spatial == 2 && direct(o, x)) {
        kernels::avg_pool2d_out(o, x, how.kernel, how.stride, how.padding, how.ceil_mode, kind.count_include_pad, kind.divisor);
        return;
    }
    write(o, average_pool(x, how, kind));
}

static void average_backward(Tensor& o, const Tensor& g, const Tensor& x, const Windows& how, const Average& kind) {
    TORCH_CHECK(!kind.divisor || *kind.divisor != 0, "divisor must be not zero");
    if (how.spatial != 2 || !reordered()) return write(o, average_pool_backward(g, x, how, kind));
    check_same_shape(o, average_pool_backward(g, x, how, kind), "the output and the result");
    split_sums::avg_pool2d_backward(o, g, split(how, kind));
}

template <int64_t kSpatial>
static diopiError_t averages(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                             diopiSize_t kernel_size, diopiSize_t stride, diopiSize_t padding, bool ceil_mode, bool count_include_pad,
                             const int64_t* divisor) {
    const auto body = [](Tensor& o, Tensor& x, Dims& kernel, Dims& stride, Dims& padding, bool ceil_mode, bool count_include_pad,
                         std::optional<int64_t> divisor) {
        average(o, x, windows(kSpatial, kernel, stride, padding, Dims(1, 1), ceil_mode), {count_include_pad, divisor});
    };
    return run(ctx, name, body, out, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor);
}

template <int64_t kSpatial>
static diopiError_t averages_backward(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t grad_input,
                                      diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, diopiSize_t kernel_size,
                                      diopiSize_t stride, diopiSize_t padding, bool ceil_mode, bool count_include_pad,
                                      const int64_t* divisor) {
    const auto body = [](Tensor& o, Tensor& g, Tensor& x, Dims& kernel, Dims& stride, Dims& padding, bool ceil_mode, bool count_include_pad,
                         std::optional<int64_t> divisor) {
        average_backward(o, g, x, windows(kSpatial, kernel, stride, padding, Dims(1, 1), ceil_mode), {count_include_pad, divisor});
    };
    return run(ctx, name, body, grad_input, grad_output, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor);
}

diopiError_t diopiAvgPool1d(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiSize_t kernel_size,
                            diopiSize_t stride, diopiSize_t padding, bool ceil_mode, bool count_include_pad) {
    return averages<1>(ctx, __func__, out, input, kernel_size, stride, padding, ceil_mode, count_include_pad, nullptr);
}

diopiError_t diopiAvgPool1dBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                    diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride, diopiSize_t padding,
                                    bool ceil_mode, bool count_include_pad) {
    return averages_backward<1>(ctx, __func__, grad_input, grad_output, input, kernel_size, stride, padding, ceil_mode, count_include_pad,
                                nullptr);
}

#define AVERAGES(N)                                                                                                                      \
    diopiError_t diopiAvgPool##N##d(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,                   \
                                    diopiSize_t kernel_size, diopiSize_t stride, diopiSize_t padding, bool ceil_mode,                    \
                                    bool count_include_pad, const int64_t* divisor_override) {                                           \
        return averages<N>(ctx, __func__, out, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override);     \
    }                                                                                                                                    \
    diopiError_t diopiAvgPool##N##dBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,                                    \
                                            diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,                        \
                                            diopiSize_t kernel_size, diopiSize_t stride, diopiSize_t padding, bool ceil_mode,            \
                                            bool count_include_pad, const int64_t* divisor_override) {                                   \
        return averages_backward<N>(ctx, __func__, grad_input, grad_output, input, kernel_size, stride, padding, ceil_mode,              \
                                    count_include_pad, divisor_override);                                                                \
    }

AVERAGES(2)
AVERAGES(3)

template <int64_t kSpatial>
static diopiError_t adaptive_averages(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                                      diopiSize_t output_size) {
    const auto body = [](Tensor& o, Tensor& x, Dims& size) {
        TORCH_CHECK(o.dim() == x.dim() && o.dim() > kSpatial && o.sizes().slice(o.dim() - kSpatial) == at::IntArrayRef(size) &&
                        o.sizes().slice(0, o.dim() - kSpatial) == x.sizes().slice(0, o.dim() - kSpatial),
                    "the output has the shape ", o.sizes(), ", but its size is to be ", at::IntArrayRef(size));
        if (kSpatial == 2 && reordered() && x.numel() > 0) return split_sums::adaptive_avg_pool2d(o, x);
        if (kSpatial == 2 && direct(o, x)) return void(kernels::adaptive_avg_pool2d_out(o, x, size));
        write(o, adaptive_average_pool(x, kSpatial, size));
    };
    return run(ctx, name, body, out, input, output_size);
}

template <int64_t kSpatial>
static diopiError_t adaptive_averages_backward(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t grad_input,
                                               diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input) {
    const auto body = [](Tensor& o, Tensor& g, Tensor& x) {
        const Tensor result = adaptive_average_pool_backward(g, x, kSpatial);
        if (kSpatial != 2 || !reordered()) return write(o, result);
        check_same_shape(o, result, "the output and the result");
        split_sums::adaptive_avg_pool2d_backward(o, g);
    };
    return run(ctx, name, body, grad_input, grad_output, input);
}

#define ADAPTIVE_AVERAGES(N)                                                                                                             \
    diopiError_t diopiAdaptiveAvgPool##N##d(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,           \
                                            diopiSize_t output_size) {                                                                   \
        return adaptive_averages<N>(ctx, __func__, out, input, output_size);                                                             \
    }                                                                                                                                    \
    diopiError_t diopiAdaptiveAvgPool##N##dBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,                            \
                                                    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input) {              \
        return adaptive_averages_backward<N>(ctx, __func__, grad_input, grad_output, input);                                             \
    }

ADAPTIVE_AVERAGES(1)
ADAPTIVE_AVERAGES(2)
ADAPTIVE_AVERAGES(3)
