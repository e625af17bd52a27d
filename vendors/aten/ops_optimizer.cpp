// Optimizers, gradient clipping and loss scaling. Halves are computed in float32 and rounded once, at the end of the step.
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>

#include "kernel.h"

using namespace dipu_vendor;

namespace {

using at::Tensor;
using Given = std::optional<Tensor>;

void check_like(const Tensor& param, const Tensor& other, const char* name) {
    TORCH_CHECK(other.defined(), name, " is NULL but must be given");
    TORCH_CHECK(other.sizes() == param.sizes(), name, " has the shape ", other.sizes(), " but the parameter has ", param.sizes());
    TORCH_CHECK(other.is_floating_point(), name, " must be of a floating dtype, not ", other.scalar_type());
}

void check_param(const Tensor& param, const Tensor& grad) {
    TORCH_CHECK(param.defined() && param.is_floating_point(), "the parameter must be of a floating dtype");
    check_like(param, grad, "grad");
}

Tensor required(const Tensor& param, const Given& given, const char* name) {
    TORCH_CHECK(given, name, " is NULL but must be given");
    check_like(param, *given, name);
    return upcast(*given);
}

// The gradient with the weight decay in it; never the caller's own tensor changed.
Tensor decayed(const Tensor& param, const Tensor& grad, double weight_decay) {
    return weight_decay != 0 ? upcast(grad) + upcast(param) * weight_decay : upcast(grad);
}

struct AdamNumbers {
    double lr, beta1, beta2, eps, weight_decay;
    bool amsgrad, decoupled;
};

void adam(Tensor& param, const Tensor& grad, Tensor& exp_avg, Tensor& exp_avg_sq, Given& max_exp_avg_sq, double step, AdamNumbers n) {
    check_param(param, grad);
    check_like(param, exp_avg, "exp_avg");
    check_like(param, exp_avg_sq, "exp_avg_sq");
    TORCH_CHECK(step >= 1, "step counts from 1; it is ", step);
    Tensor p = upcast(param), g = n.decoupled ? upcast(grad) : decayed(param, grad, n.weight_decay);
    if (n.decoupled) p = p * (1 - n.lr * n.weight_decay);
    Tensor mean = upcast(exp_avg), square = upcast(exp_avg_sq);
    mean = mean + (g - mean) * (1 - n.beta1);
    square = square * n.beta2 + g * g * (1 - n.beta2);
    Tensor largest = square;
    if (n.amsgrad) largest = at::maximum(required(param, max_exp_avg_sq, "max_exp_avg_sq"), square);
    const Tensor denominator = largest.sqrt() / std::sqrt(1 - std::pow(n.beta2, step)) + n.eps;
    p = p - mean / denominator * (n.lr / (1 - std::pow(n.beta1, step)));
    exp_avg.copy_(mean);
    exp_avg_sq.copy_(square);
    if (n.amsgrad) max_exp_avg_sq->copy_(largest);
    param.copy_(p);
}

template <bool decoupled>
diopiError_t adam_step(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t param, diopiConstTensorHandle_t grad,
                       diopiTensorHandle_t exp_avg, diopiTensorHandle_t exp_avg_sq, diopiTensorHandle_t max_exp_avg_sq, AdamNumbers n,
                       int64_t step) {
    return run(ctx, name, [](Tensor& p, Tensor& g, Tensor& mean, Tensor& square, Given largest, double lr, double beta1, double beta2,
                             double eps, double weight_decay, int64_t step, bool amsgrad) {
        adam(p, g, mean, square, largest, static_cast<double>(step), {lr, beta1, beta2, eps, weight_decay, amsgrad, decoupled});
    }, param, grad, exp_avg, exp_avg_sq, maybe(max_exp_avg_sq), n.lr, n.beta1, n.beta2, n.eps, n.weight_decay, step, n.amsgrad);
}

double one_number(const Tensor& tensor, const char* name) {
    TORCH_CHECK(tensor.defined() && tensor.numel() == 1, name, " must hold one number");
    return tensor.reshape({}).item<double>();
}

double norm_of(const std::vector<Tensor>& grads, double norm_type) {
    std::vector<Tensor> norms;
    for (const Tensor& grad : grads) {
        TORCH_CHECK(grad.defined() && grad.is_floating_point(), "a gradient is NULL or not of a floating dtype");
        norms.push_back(at::linalg_vector_norm(upcast(grad), norm_type).to(at::kDouble));
    }
    return norms.empty() ? 0.0 : at::linalg_vector_norm(at::stack(norms), norm_type).item<double>();
}

}  // namespace

diopiError_t diopiSgd(diopiContextHandle_t ctx, diopiTensorHandle_t param, diopiTensorHandle_t grad, diopiTensorHandle_t buf, double lr,
                      double momentum, double dampening, double weight_decay, bool nesterov) {
    return run(ctx, __func__, [](Tensor& param, Tensor& grad, Given buf, double lr, double momentum, double dampening, double weight_decay,
                                 bool nesterov) {
        check_param(param, grad);
        Tensor step = decayed(param, grad, weight_decay);
        if (momentum != 0) {
            Tensor velocity = step;  // of a first step
            if (buf) velocity = required(param, buf, "buf") * momentum + step * (1 - dampening);
            if (buf) buf->copy_(velocity);
            step = nesterov ? step + velocity * momentum : velocity;
        }
        param.copy_(upcast(param) - step * lr);
    }, param, diopiConstTensorHandle_t(grad), maybe(buf), lr, momentum, dampening, weight_decay, nesterov);
}

diopiError_t diopiAdam(diopiContextHandle_t ctx, diopiTensorHandle_t param, diopiConstTensorHandle_t grad, diopiTensorHandle_t exp_avg,
                       diopiTensorHandle_t exp_avg_sq, diopiTensorHandle_t max_exp_avg_sq, float lr, float beta1, float beta2, float eps,
                       float weight_decay, int64_t step, bool amsgrad) {
    const AdamNumbers numbers{lr, beta1, beta2, eps, weight_decay, amsgrad, false};
    return adam_step<false>(ctx, __func__, param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, numbers, step);
}

diopiError_t diopiAdamW(diopiContextHandle_t ctx, diopiTensorHandle_t param, diopiConstTensorHandle_t grad, diopiTensorHandle_t exp_avg,
                        diopiTensorHandle_t exp_avg_sq, diopiTensorHandle_t max_exp_avg_sq, float lr, float beta1, float beta2, float eps,
                        float weight_decay, int64_t step, bool amsgrad) {
    const AdamNumbers numbers{lr, beta1, beta2, eps, weight_decay, amsgrad, true};
    return adam_step<true>(ctx, __func__, param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, numbers, step);
}

// ATen's fused kernel checks nothing: it wants dense tensors of one dtype and shape for each parameter.
static bool fused_by_aten(const std::vector<Tensor>& params, const std::vector<Tensor>& grads, const std::vector<Tensor>& means,
                          const std::vector<Tensor>& squares, const std::vector<Tensor>& largest, const std::vector<Tensor>& steps,
                          bool amsgrad) {
    const auto fits = [](const Tensor& given, const Tensor& param) {
        return given.defined() && given.is_contiguous() && given.scalar_type() == param.scalar_type() && given.sizes() == param.sizes();
    };
    for (size_t i = 0; i < params.size(); ++i) {
        if (!params[i].defined() || !at::isFloatingType(params[i].scalar_type()) || !fits(params[i], params[i])) return false;
        if (!fits(grads[i], params[i]) || !fits(means[i], params[i]) || !fits(squares[i], params[i])) return false;
        if (amsgrad && !fits(largest[i], params[i])) return false;
        if (!steps[i].defined() || steps[i].scalar_type() != at::kFloat || steps[i].numel() != 1) return false;
    }
    return !params.empty();
}

diopiError_t diopiFusedAdamW(diopiContextHandle_t ctx, diopiTensorHandle_t* params, diopiConstTensorHandle_t* grads,
                             diopiTensorHandle_t* exp_avgs, diopiTensorHandle_t* exp_avg_sqs, diopiTensorHandle_t* max_exp_avg_sqs,
                             diopiConstTensorHandle_t* state_steps, int64_t nums, double lr, double beta1, double beta2, double eps,
                             double weight_decay, bool amsgrad, bool maximize) {
    using List = std::vector<Tensor>;
    return run(ctx, __func__, [](List& params, List& grads, List& means, List& squares, List& largest, List& steps, double lr, double beta1,
                                 double beta2, double eps, double weight_decay, bool amsgrad, bool maximize) {
        if (fused_by_aten(params, grads, means, squares, largest, steps, amsgrad)) {
            at::_fused_adamw_(params, grads, means, squares, largest, steps, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize);
            return;
        }
        for (size_t i = 0; i < params.size(); ++i) {
            TORCH_CHECK(grads[i].defined() && means[i].defined() && squares[i].defined(), "tensors of the parameter ", i, " are NULL");
            Given most = amsgrad && largest[i].defined() ? Given(largest[i]) : std::nullopt;
            const double step = one_number(steps[i], "each of state_steps");
            adam(params[i], maximize ? -grads[i] : grads[i], means[i], squares[i], most, step,
                 {lr, beta1, beta2, eps, weight_decay, amsgrad, /*decoupled=*/true});
        }
    }, list(params, nums), list(grads, nums), list(exp_avgs, nums), list(exp_avg_sqs, nums), list(max_exp_avg_sqs, amsgrad ? nums : 0),
       list(state_steps, nums), lr, beta1, beta2, eps, weight_decay, amsgrad, maximize);
}

diopiError_t diopiAdadelta(diopiContextHandle_t ctx, diopiTensorHandle_t param, diopiConstTensorHandle_t grad,
                           diopiTensorHandle_t square_avg, diopiTensorHandle_t acc_delta, float lr, float rho, float eps,
                           float weight_decay) {
    return run(ctx, __func__, [](Tensor& param, Tensor& grad, Tensor& square_avg, Tensor& acc_delta, double lr, double rho, double eps,
                                 double weight_decay) {
        check_param(param, grad);
        check_like(param, square_avg, "square_avg");
        check_like(param, acc_delta, "acc_delta");
        const Tensor g = decayed(param, grad, weight_decay), past = upcast(acc_delta);
        const Tensor square = upcast(square_avg) * rho + g * g * (1 - rho);
        const Tensor delta = (past + eps).sqrt() / (square + eps).sqrt() * g;
        square_avg.copy_(square);
        acc_delta.copy_(past * rho + delta * delta * (1 - rho));
        param.copy_(upcast(param) - delta * lr);
    }, param, grad, square_avg, acc_delta, double(lr), double(rho), double(eps), double(weight_decay));
}

diopiError_t diopiRmsprop(diopiContextHandle_t ctx, diopiTensorHandle_t param, diopiConstTensorHandle_t grad,
                          diopiTensorHandle_t square_avg, diopiTensorHandle_t grad_avg, diopiTensorHandle_t momentum_buf, float lr,
                          float alpha, float eps, float weight_decay, float momentum, bool centered) {
    return run(ctx, __func__, [](Tensor& param, Tensor& grad, Tensor& square_avg, Given grad_avg, Given buf, double lr, double alpha,
                                 double eps, double weight_decay, double momentum, bool centered) {
        check_param(param, grad);
        check_like(param, square_avg, "square_avg");
        const Tensor g = decayed(param, grad, weight_decay);
        const Tensor square = upcast(square_avg) * alpha + g * g * (1 - alpha);
        Tensor spread = square;
        if (centered) {
            const Tensor past = required(param, grad_avg, "grad_avg"), mean = past + (g - past) * (1 - alpha);
            spread = square - mean * mean;
            grad_avg->copy_(mean);
        }
        Tensor step = g / (spread.sqrt() + eps);
        if (momentum > 0) {
            step = required(param, buf, "momentum_buf") * momentum + step;
            buf->copy_(step);
        }
        square_avg.copy_(square);
        param.copy_(upcast(param) - step * lr);
    }, param, grad, square_avg, maybe(grad_avg), maybe(momentum_buf), double(lr), double(alpha), double(eps), double(weight_decay),
       double(momentum), centered);
}

// ---- gradients ----

// The norm goes to the caller's own memory, so it must be there when the call returns.
diopiError_t diopiClipGradNorm(diopiContextHandle_t ctx, double* out, diopiTensorHandle_t* grads, int64_t num_grads, double max_norm,
                               double norm_type, bool error_if_nonfinite) {
    return run_now(ctx, __func__, [&] {
        TORCH_CHECK(out, "out is NULL but must be given");
        auto tensors = argument(list(grads, num_grads));
        const double norm = norm_of(tensors, norm_type);
        TORCH_CHECK(!error_if_nonfinite || std::isfinite(norm), "the norm of the gradients is ", norm, ", so they cannot be clipped");
        double factor = max_norm / (norm + 1e-6);
        if (factor > 1) factor = 1;  // not std::min: NaN stays
        for (Tensor& grad : tensors) grad.copy_(upcast(grad) * factor);
        *out = norm;
    });
}

// ATen's kernels read the numbers where they are; the simulated chip's loops are as quick.
static bool scaled_by_aten(const std::vector<Tensor>& grads, const Tensor& found_inf, const Tensor& scale) {
    const auto number = [](const Tensor& tensor) { return tensor.defined() && tensor.numel() == 1 && tensor.scalar_type() == at::kFloat; };
    return !kKernelsNeedChecks && number(found_inf) && number(scale) && std::all_of(grads.begin(), grads.end(), [](const Tensor& grad) {
        return grad.defined() && grad.is_floating_point() && grad.is_non_overlapping_and_dense();
    });
}

diopiError_t diopiAmpForeachNonFiniteCheckAndUnscaleInp(diopiContextHandle_t ctx, diopiTensorHandle_t* scaled_grads,
                                                        int64_t num_scaled_grads, diopiTensorHandle_t found_inf,
                                                        diopiConstTensorHandle_t inv_scale) {
    return run(ctx, __func__, [](std::vector<Tensor>& grads, Tensor& found_inf, Tensor& inv_scale) {
        if (scaled_by_aten(grads, found_inf, inv_scale)) return at::_amp_foreach_non_finite_check_and_unscale_(grads, found_inf, inv_scale);
        const double factor = one_number(inv_scale, "inv_scale");
        one_number(found_inf, "found_inf");
        for (Tensor& grad : grads) {
            TORCH_CHECK(grad.defined() && grad.is_floating_point(), "a gradient is NULL or not of a floating dtype");
            if (!at::isfinite(grad).all().item<bool>()) found_inf.fill_(1);
            if (factor != 1) grad.copy_(upcast(grad) * factor);
        }
    }, list(scaled_grads, num_scaled_grads), found_inf, inv_scale);
}

diopiError_t diopiAmpUpdateScaleInp(diopiContextHandle_t ctx, diopiTensorHandle_t current_scale, diopiTensorHandle_t growth_tracker,
                                    diopiConstTensorHandle_t found_inf, double scale_growth_factor, double scale_backoff_factor,
                                    int32_t growth_interval) {
    return run(ctx, __func__, [](Tensor& scale, Tensor& tracker, Tensor& found_inf, double growth, double backoff, int32_t interval) {
        if (scaled_by_aten({scale}, found_inf, scale) && tracker.scalar_type() == at::kInt && tracker.numel() == 1)
            return void(at::_amp_update_scale_(scale, tracker, found_inf, growth, backoff, interval));
        const double now = one_number(scale, "current_scale"), good = one_number(tracker, "growth_tracker") + 1;
        TORCH_CHECK(scale.is_floating_point() && !tracker.is_floating_point(), "the scale must be floating, its tracker an integer");
        if (one_number(found_inf, "found_inf") != 0) {
            scale.fill_(now * backoff);
            tracker.zero_();
        } else if (good == interval) {
            const double grown = scale.scalar_type() == at::kDouble ? now * growth : static_cast<double>(static_cast<float>(now * growth));
            if (std::isfinite(grown)) scale.fill_(grown);
            tracker.zero_();
        } else {
            tracker.fill_(good);
        }
    }, current_scale, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor, growth_interval);
}
