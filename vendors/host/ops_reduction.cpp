// Reductions, softmax, losses and normalisations.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_log_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_cpu_dispatch.h>
#include <ATen/ops/_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_softmax_cpu_dispatch.h>
#include <ATen/ops/all_cpu_dispatch.h>
#include <ATen/ops/amax_cpu_dispatch.h>
#include <ATen/ops/any_cpu_dispatch.h>
#include <ATen/ops/argmax_cpu_dispatch.h>
#include <ATen/ops/argmin_cpu_dispatch.h>
#include <ATen/ops/cumsum_cpu_dispatch.h>
#include <ATen/ops/linalg_vector_norm_cpu_dispatch.h>
#include <ATen/ops/max_cpu_dispatch.h>
#include <ATen/ops/mean_cpu_dispatch.h>
#include <ATen/ops/min_cpu_dispatch.h>
#include <ATen/ops/mse_loss_cpu_dispatch.h>
#include <ATen/ops/native_batch_norm_backward_cpu_dispatch.h>
#include <ATen/ops/native_batch_norm_cpu_dispatch.h>
#include <ATen/ops/native_group_norm_cpu_dispatch.h>
#include <ATen/ops/native_layer_norm_backward_cpu_dispatch.h>
#include <ATen/ops/native_layer_norm_cpu_dispatch.h>
#include <ATen/ops/nll_loss_backward_cpu_dispatch.h>
#include <ATen/ops/nll_loss_forward_cpu_dispatch.h>
#include <ATen/ops/sum_cpu_dispatch.h>

#include <cmath>

#include "kernel.h"
#include "reordered.h"

using namespace dipu_host;

// The interface does not say whether reduced dimensions are kept; the output does.
static bool kept(const at::Tensor& out, const at::Tensor& input) { return out.dim() == input.dim(); }

static std::optional<int64_t> optional_dim(const int64_t* dim) { return dim ? std::optional<int64_t>(*dim) : std::nullopt; }

diopiError_t diopiSum(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiSize_t dim) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), d = dims(dim), split = reordered()]() mutable {
        if (split) return split_sums::sum(o, x, d, kept(o, x));
        at::cpu::sum_out(o, x, d, kept(o, x), o.scalar_type());
    });
}

diopiError_t diopiMean(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiSize_t dim) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), d = dims(dim), split = reordered()]() mutable {
        if (split) return split_sums::mean(o, x, d, kept(o, x));
        at::cpu::mean_out(o, x, d, kept(o, x), o.scalar_type());
    });
}

diopiError_t diopiAmax(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t self, diopiSize_t dim,
                       bool keepdim) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(self), d = dims(dim), keepdim]() mutable { at::cpu::amax_out(o, x, d, keepdim); });
}

#define EXTREMUM(Name, kernel)                                                                                           \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t values, diopiTensorHandle_t indices,          \
                             diopiConstTensorHandle_t input, int64_t dim) {                                              \
        return LAUNCH(ctx, __func__, [v = view(values), i = view(indices), x = view(input), dim]() mutable {             \
            at::cpu::kernel(v, i, x, dim, kept(v, x));                                                                   \
        });                                                                                                              \
    }                                                                                                                    \
    diopiError_t diopi##Name##All(diopiContextHandle_t ctx, diopiTensorHandle_t value, diopiConstTensorHandle_t input) { \
        return LAUNCH(ctx, __func__, [v = view(value), x = view(input)]() mutable { at::cpu::kernel(v, x); });           \
    }

EXTREMUM(Max, max_out)
EXTREMUM(Min, min_out)

#define POSITION(Name, kernel)                                                                                    \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,   \
                             const int64_t* dim, bool keepdim) {                                                  \
        return LAUNCH(ctx, __func__, [o = view(out), x = view(input), d = optional_dim(dim), keepdim]() mutable { \
            at::cpu::kernel(o, x, d, keepdim);                                                                    \
        });                                                                                                       \
    }

POSITION(Argmax, argmax_out)
POSITION(Argmin, argmin_out)

#define QUANTIFIER(Name, kernel)                                                                                \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, \
                             const int64_t* dim) {                                                              \
        return LAUNCH(ctx, __func__, [o = view(out), x = view(input), d = optional_dim(dim)]() mutable {        \
            if (d) return void(at::cpu::kernel(o, x, *d, kept(o, x)));                                          \
            at::cpu::kernel(o, x);                                                                              \
        });                                                                                                     \
    }

QUANTIFIER(Any, any_out)
QUANTIFIER(All, all_out)

diopiError_t diopiCumsum(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t dim) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), dim]() mutable { at::cpu::cumsum_out(o, x, dim, o.scalar_type()); });
}

diopiError_t diopiLinalgVecNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                                diopiScalar_t* ord, diopiSize_t dim, bool keepdim) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), p = scalar(ord), d = dims(dim), keepdim, split = reordered()]() mutable {
                      const double order = p.toDouble();
                      if (split && order != 0 && std::isfinite(order)) return split_sums::vector_norm(o, x, order, d, keepdim);
                      at::cpu::linalg_vector_norm_out(o, x, p, d, keepdim, o.scalar_type());
                  });
}

diopiError_t diopiSoftmax(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t dim) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), dim, split = reordered()]() mutable {
        if (split) return split_sums::softmax(o, x, dim);
        at::cpu::_softmax_out(o, x, dim, /*half_to_float=*/false);
    });
}

diopiError_t diopiLogSoftmax(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t dim) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), dim, split = reordered()]() mutable {
        if (split) return split_sums::log_softmax(o, x, dim);
        at::cpu::_log_softmax_out(o, x, dim, /*half_to_float=*/false);
    });
}

diopiError_t diopiSoftmaxBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                  diopiConstTensorHandle_t output, int64_t dim) {
    return LAUNCH(ctx, __func__, [o = view(grad_input), g = view(grad_output), y = view(output), dim, split = reordered()]() mutable {
                      if (split) return split_sums::softmax_backward(o, g, y, dim);
                      at::cpu::_softmax_backward_data_out(o, g, y, dim, o.scalar_type());
                  });
}

diopiError_t diopiLogSoftmaxBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
                                     diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t output, int64_t dim) {
    return LAUNCH(ctx, __func__, [o = view(grad_input), g = view(grad_output), y = view(output), dim, split = reordered()]() mutable {
                      if (split) return split_sums::log_softmax_backward(o, g, y, dim);
                      at::cpu::_log_softmax_backward_data_out(o, g, y, dim, o.scalar_type());
                  });
}

diopiError_t diopiMSELoss(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                          diopiConstTensorHandle_t target, diopiReduction_t reduction) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), t = view(target), reduction, split = reordered()]() mutable {
        if (split && reduction != ReductionNone) return split_sums::mse_loss(o, x, t, reduction == ReductionMean);
        if (reduction == ReductionNone) return void(at::cpu::mse_loss_out(o, x, t, reduction));
        o.copy_(at::cpu::mse_loss(x, t, reduction));  // the out form resizes its output on the way
    });
}

diopiError_t diopiNLLLossV2(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t totalWeight,
                            diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight,
                            diopiReduction_t reduction, int64_t ignore_index) {
    return LAUNCH(ctx, __func__,
        [o = view(out), total = view(totalWeight), x = view(input), t = view(target), w = optional_view(weight), reduction,
         ignore_index]() mutable { at::cpu::nll_loss_forward_out(o, total, x, t, w, reduction, ignore_index); });
}

diopiError_t diopiNLLLossV2Backward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
                                    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
                                    diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight,
                                    diopiConstTensorHandle_t totalWeight, diopiReduction_t reduction, int64_t ignore_index) {
    return LAUNCH(ctx, __func__, [o = view(grad_input), g = view(grad_output), x = view(input), t = view(target), w = optional_view(weight),
                   total = view(totalWeight), reduction,
                   ignore_index]() mutable { at::cpu::nll_loss_backward_out(o, g, x, t, w, reduction, ignore_index, total); });
}

// A kernel's results into the caller's tensors; an undefined one was not wanted.
static void store(at::Tensor& out, const at::Tensor& result) {
    if (out.defined()) out.copy_(result);
}

diopiError_t diopiLayerNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t save_mean,
                            diopiTensorHandle_t save_invstd, diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
                            diopiConstTensorHandle_t bias, diopiSize_t normalized_shape, double eps) {
    return LAUNCH(ctx, __func__, [o = view(out), mean = view(save_mean), rstd = view(save_invstd), x = view(input), w = optional_view(weight),
                   b = optional_view(bias), shape = dims(normalized_shape), eps, split = reordered()]() mutable {
                      if (split) return split_sums::layer_norm(o, mean, rstd, x, w, b, shape.size(), eps);
                      const auto [y, m, r] = at::cpu::native_layer_norm(x, shape, w, b, eps);
                      store(o, y), store(mean, m), store(rstd, r);
                  });
}

diopiError_t diopiLayerNormBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
                                    diopiTensorHandle_t grad_bias, diopiConstTensorHandle_t grad_output,
                                    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
                                    diopiConstTensorHandle_t bias, diopiConstTensorHandle_t mean, diopiConstTensorHandle_t rstd,
                                    diopiSize_t normalized_shape) {
    return LAUNCH(ctx, __func__, [gx = view_or_undefined(grad_input), gw = view_or_undefined(grad_weight), gb = view_or_undefined(grad_bias),
                   g = view(grad_output), x = view(input), w = optional_view(weight), b = optional_view(bias), m = view(mean),
                   r = view(rstd), shape = dims(normalized_shape), split = reordered()]() mutable {
                      if (split) return split_sums::layer_norm_backward(gx, gw, gb, g, x, w, m, r, shape.size());
                      const auto [dx, dw, db] = at::cpu::native_layer_norm_backward(g, x, shape, m, r, w, b,
                                                                                    {gx.defined(), gw.defined(), gb.defined()});
                      store(gx, dx), store(gw, dw), store(gb, db);
                  });
}

diopiError_t diopiBatchNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t save_mean,
                            diopiTensorHandle_t save_invstd, diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
                            diopiConstTensorHandle_t bias, diopiTensorHandle_t running_mean, diopiTensorHandle_t running_var,
                            bool training, double momentum, double eps) {
    return LAUNCH(ctx, __func__, [o = view(out), mean = view(save_mean), invstd = view(save_invstd), x = view(input), w = optional_view(weight),
                   b = optional_view(bias), rm = view_or_undefined(running_mean), rv = view_or_undefined(running_var), training,
                   momentum, eps, split = reordered()]() mutable {
                      if (split && training) return split_sums::batch_norm(o, mean, invstd, x, w, b, rm, rv, momentum, eps);
                      at::cpu::native_batch_norm_out(o, mean, invstd, x, w, b, rm, rv, training, momentum, eps);
                  });
}

diopiError_t diopiBatchNormBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
                                    diopiTensorHandle_t grad_bias, diopiConstTensorHandle_t grad_output,
                                    diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
                                    diopiConstTensorHandle_t running_mean, diopiConstTensorHandle_t running_var,
                                    diopiConstTensorHandle_t save_mean, diopiConstTensorHandle_t save_invstd, bool training,
                                    double eps) {
    return LAUNCH(ctx, __func__, [gx = view_or_undefined(grad_input), gw = view_or_undefined(grad_weight), gb = view_or_undefined(grad_bias),
                   g = view(grad_output), x = view(input), w = optional_view(weight), rm = view_or_undefined(running_mean),
                   rv = view_or_undefined(running_var), mean = view_or_undefined(save_mean),
                   invstd = view_or_undefined(save_invstd), training, eps, split = reordered()]() mutable {
                      if (split) {
                          if (!training) mean = rm, invstd = rv.add(eps).rsqrt();
                          return split_sums::batch_norm_backward(gx, gw, gb, g, x, w, mean, invstd, training);
                      }
                      const auto [dx, dw, db] = at::cpu::native_batch_norm_backward(g, x, w, rm, rv, mean, invstd, training, eps,
                                                                                    {gx.defined(), gw.defined(), gb.defined()});
                      store(gx, dx), store(gw, dw), store(gb, db);
                  });
}

diopiError_t diopiGroupNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t save_mean,
                            diopiTensorHandle_t save_invstd, diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
                            diopiConstTensorHandle_t bias, int64_t num_groups, double eps) {
    return LAUNCH(ctx, __func__, [o = view(out), mean = view(save_mean), rstd = view(save_invstd), x = view(input), w = optional_view(weight),
                   b = optional_view(bias), num_groups, eps, split = reordered()]() mutable {
                      if (split) return split_sums::group_norm(o, mean, rstd, x, w, b, num_groups, eps);
                      const int64_t samples = x.size(0), channels = x.size(1), pixels = x.numel() / (samples * channels);
                      const auto [y, m, r] = at::cpu::native_group_norm(x, w, b, samples, channels, pixels, num_groups, eps);
                      store(o, y), store(mean, m), store(rstd, r);
                  });
}
