// Matrix products, convolutions and pooling.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward_cpu_dispatch.h>
#include <ATen/ops/adaptive_avg_pool2d_cpu_dispatch.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/avg_pool2d_backward_cpu_dispatch.h>
#include <ATen/ops/avg_pool2d_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/convolution_backward_native.h>
#include <ATen/ops/convolution_native.h>
#include <ATen/ops/max_pool2d_with_indices_backward_cpu_dispatch.h>
#include <ATen/ops/max_pool2d_with_indices_cpu_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>

#include "kernel.h"
#include "reordered.h"

using namespace dipu_host;

diopiError_t diopiMm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                     diopiConstTensorHandle_t mat2) {
    return LAUNCH(ctx, __func__, [o = view(out), a = view(input), b = view(mat2), split = reordered()]() mutable {
        if (split) return split_sums::addmm(o, std::nullopt, a, b, 0, 1);
        at::cpu::mm_out(o, a, b);
    });
}

diopiError_t diopiBmm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                      diopiConstTensorHandle_t mat2) {
    return LAUNCH(ctx, __func__, [o = view(out), a = view(input), b = view(mat2), split = reordered()]() mutable {
        if (split) return split_sums::addmm(o, std::nullopt, a, b, 0, 1);
        at::cpu::bmm_out(o, a, b);
    });
}

diopiError_t diopiAddmm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                        diopiConstTensorHandle_t mat1, diopiConstTensorHandle_t mat2, const diopiScalar_t* beta,
                        const diopiScalar_t* alpha) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), a = view(mat1), b = view(mat2), input_scale = scalar(beta),
                   product_scale = scalar(alpha), split = reordered()]() mutable {
                      if (split) return split_sums::addmm(o, x, a, b, input_scale.toDouble(), product_scale.toDouble());
                      at::cpu::addmm_out(o, x, a, b, input_scale, product_scale);
                  });
}

diopiError_t diopiBaddbmm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                          diopiConstTensorHandle_t batch1, diopiConstTensorHandle_t batch2, double beta, double alpha) {
    return LAUNCH(ctx, __func__,
        [o = view(out), x = view(input), a = view(batch1), b = view(batch2), beta, alpha, split = reordered()]() mutable {
            if (split) return split_sums::addmm(o, x, a, b, beta, alpha);
            at::cpu::baddbmm_out(o, x, a, b, beta, alpha);
        });
}

diopiError_t diopiBaddbmmInp(diopiContextHandle_t ctx, diopiTensorHandle_t input, diopiConstTensorHandle_t batch1,
                             diopiConstTensorHandle_t batch2, double beta, double alpha) {
    return LAUNCH(ctx, __func__, [x = view(input), a = view(batch1), b = view(batch2), beta, alpha, split = reordered()]() mutable {
                      if (split) return split_sums::addmm(x, x, a, b, beta, alpha);
                      at::cpu::baddbmm_(x, a, b, beta, alpha);
                  });
}

constexpr int64_t kOutputPadding[] = {0, 0};  // of transposed convolutions only

// The choice of algorithm (oneDNN, im2col, ...) is at::convolution's, as on the CPU; it has no form that writes into a
// given tensor.
diopiError_t diopiConvolution2d(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                                diopiConstTensorHandle_t weight, diopiConstTensorHandle_t bias, diopiSize_t stride,
                                diopiSize_t padding, diopiSize_t dilation, int64_t groups) {
    split_sums::Convolution how{dims(stride), dims(padding), dims(dilation), groups};
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), w = view(weight), b = optional_view(bias), how = std::move(how),
                   split = reordered()]() mutable {
                      if (split) return split_sums::convolution2d(o, x, w, b, how);
                      o.copy_(at::native::convolution(x, w, b, how.stride, how.padding, how.dilation, /*transposed=*/false,
                                                      kOutputPadding, how.groups));
                  });
}

diopiError_t diopiConvolution2dBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
                                        diopiTensorHandle_t grad_bias, diopiConstTensorHandle_t grad_output,
                                        diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight, diopiSize_t* bias_sizes,
                                        diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation, int64_t groups) {
    split_sums::Convolution how{dims(stride), dims(padding), dims(dilation), groups};
    return LAUNCH(ctx, __func__,
        [gx = view_or_undefined(grad_input), gw = view_or_undefined(grad_weight), gb = view_or_undefined(grad_bias),
         g = view(grad_output), x = view(input), w = view(weight), how = std::move(how), split = reordered()]() mutable {
            if (split) return split_sums::convolution2d_backward(gx, gw, gb, g, x, w, how);
            const int64_t bias_shape[] = {w.size(0)};
            const auto [dx, dw, db] =
                at::native::convolution_backward(g, x, w, bias_shape, how.stride, how.padding, how.dilation, /*transposed=*/false,
                                                 kOutputPadding, how.groups, {gx.defined(), gw.defined(), gb.defined()});
            if (gx.defined()) gx.copy_(dx);
            if (gw.defined()) gw.copy_(dw);
            if (gb.defined()) gb.copy_(db);
        });
}

diopiError_t diopiMaxPool2dWithIndices(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t indices,
                                       diopiConstTensorHandle_t input, diopiSize_t kernel_size, diopiSize_t stride,
                                       diopiSize_t padding, diopiSize_t dilation, bool ceil_mode) {
    return LAUNCH(ctx, __func__,
        [o = view(out), i = view(indices), x = view(input), k = dims(kernel_size), s = dims(stride), p = dims(padding),
         d = dims(dilation), ceil_mode]() mutable { at::cpu::max_pool2d_with_indices_out(o, i, x, k, s, p, d, ceil_mode); });
}

diopiError_t diopiMaxPool2dBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
                                    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, diopiSize_t kernel_size,
                                    diopiSize_t stride, diopiSize_t padding, diopiSize_t dilation, bool ceil_mode,
                                    diopiConstTensorHandle_t indices) {
    return LAUNCH(ctx, __func__, [o = view(grad_input), g = view(grad_output), x = view(input), k = dims(kernel_size), s = dims(stride),
                   p = dims(padding), d = dims(dilation), ceil_mode, i = view(indices)]() mutable {
                      at::cpu::max_pool2d_with_indices_backward_out(o, g, x, k, s, p, d, ceil_mode, i);
                  });
}

static split_sums::Pooling pooling(diopiSize_t kernel, diopiSize_t stride, diopiSize_t padding, bool count_include_pad,
                                   const int64_t* divisor) {
    return {dims(kernel), dims(stride), dims(padding), count_include_pad,
            divisor ? std::optional<int64_t>(*divisor) : std::nullopt};
}

diopiError_t diopiAvgPool2d(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                            diopiSize_t kernel_size, diopiSize_t stride, diopiSize_t padding, bool ceil_mode,
                            bool count_include_pad, const int64_t* divisor_override) {
    return LAUNCH(ctx, __func__,
        [o = view(out), x = view(input), how = pooling(kernel_size, stride, padding, count_include_pad, divisor_override),
         ceil_mode, split = reordered()]() mutable {
            if (split) return split_sums::avg_pool2d(o, x, how);
            at::cpu::avg_pool2d_out(o, x, how.kernel, how.stride, how.padding, ceil_mode, how.count_include_pad, how.divisor);
        });
}

diopiError_t diopiAvgPool2dBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
                                    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input, diopiSize_t kernel_size,
                                    diopiSize_t stride, diopiSize_t padding, bool ceil_mode, bool count_include_pad,
                                    const int64_t* divisor_override) {
    return LAUNCH(ctx, __func__, [o = view(grad_input), g = view(grad_output), x = view(input),
                   how = pooling(kernel_size, stride, padding, count_include_pad, divisor_override), ceil_mode,
                   split = reordered()]() mutable {
                      if (split) return split_sums::avg_pool2d_backward(o, g, how);
                      at::cpu::avg_pool2d_backward_out(o, g, x, how.kernel, how.stride, how.padding, ceil_mode,
                                                       how.count_include_pad, how.divisor);
                  });
}

diopiError_t diopiAdaptiveAvgPool2d(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                                    diopiSize_t output_size) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), size = dims(output_size), split = reordered()]() mutable {
        if (split) return split_sums::adaptive_avg_pool2d(o, x);
        at::cpu::adaptive_avg_pool2d_out(o, x, size);
    });
}

diopiError_t diopiAdaptiveAvgPool2dBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
                                            diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input) {
    return LAUNCH(ctx, __func__, [o = view(grad_input), g = view(grad_output), x = view(input), split = reordered()]() mutable {
        if (split) return split_sums::adaptive_avg_pool2d_backward(o, g);
        o.copy_(at::cpu::_adaptive_avg_pool2d_backward(g, x));
    });
}
