// Losses and their gradients. Halves are computed in float32 and rounded once.
#include "chip.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/binary_cross_entropy.h>
#include <ATen/ops/binary_cross_entropy_backward.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/log_softmax.h>
#include KERNELS(nll_loss2d_backward)
#include KERNELS(nll_loss2d_forward)
#include KERNELS(nll_loss_backward)
#include KERNELS(nll_loss_forward)
#include <ATen/ops/nll_loss_nd.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/smooth_l1_loss.h>
#include <ATen/ops/zeros_like.h>

#include "losses.h"

using namespace dipu_vendor;

namespace {

using at::Tensor;
using Given = std::optional<Tensor>;

Given upcast_if_given(const Given& tensor) { return tensor ? Given(upcast(*tensor)) : std::nullopt; }

// ---- classes ----

// Targets that are class indices, 0 where they are ignored. ATen's gradients write where they point to, without a check.
Tensor checked_targets(const Tensor& input, const Tensor& target, const Given& weight, int64_t ignore_index) {
    TORCH_CHECK(input.dim() > 0, "the input must have a dimension of classes");
    TORCH_CHECK(!target.is_floating_point() && !target.is_complex(), "targets must be class indices");
    const int64_t dim = input.dim() > 1 ? 1 : 0, count = input.size(dim);
    Dims expected(input.sizes().begin(), input.sizes().end());
    expected.erase(expected.begin() + dim);
    TORCH_CHECK(target.sizes() == at::IntArrayRef(expected), "the target has the shape ", target.sizes(), " but for an input of ",
                input.sizes(), " it must be ", at::IntArrayRef(expected));
    TORCH_CHECK(!weight || (weight->dim() == 1 && weight->size(0) == count), "weight must hold one number for each of the ", count,
                " classes");
    const Tensor classes_of_targets = target.to(at::kLong).masked_fill(target.to(at::kLong).eq(ignore_index), 0);
    TORCH_CHECK_INDEX(!kKernelsNeedChecks || !classes_of_targets.numel() || (count > 0 && classes_of_targets.min().item<int64_t>() >= 0 && classes_of_targets.max().item<int64_t>() < count),
                "a target is not a class: they must be in [0, ", count, ")");
    return classes_of_targets;
}

// Class indices, and what each of them counts.
struct Classes {
    int64_t dim, count;
    Tensor valid, classes_of_targets, weights;

    Classes(const Tensor& input, const Tensor& target, const Given& weight, int64_t ignore_index)
        : dim(input.dim() > 1 ? 1 : 0), classes_of_targets(checked_targets(input, target, weight, ignore_index)) {
        count = input.size(dim);
        valid = target.to(at::kLong).ne(ignore_index);
        const auto type = at::toOpMathType(input.scalar_type());
        weights = weight && classes_of_targets.numel() ? weight->to(type).index_select(0, classes_of_targets.flatten()).view(classes_of_targets.sizes())
                                           : at::ones(classes_of_targets.sizes(), input.options().dtype(type));
        weights = weights.masked_fill(valid.logical_not(), 0);
    }

    // What a sample's loss is multiplied by: the gradient from behind, divided by the total weight if the mean is taken.
    Tensor upstream(const Tensor& grad, diopiReduction_t reduction) const {
        check_grad(grad, classes_of_targets.sizes(), reduction);
        const Tensor g = behind(grad, reduction).expand(classes_of_targets.sizes());
        const Tensor scaled = reduction == ReductionMean ? g / weights.sum() : g;
        return scaled.masked_fill(valid.logical_not(), 0);  // also where nothing counts and the total is 0
    }
    Tensor spread(const Tensor& values, const Tensor& like) const {
        return at::zeros_like(like, at::MemoryFormat::Contiguous).scatter(dim, classes_of_targets.unsqueeze(dim), values.unsqueeze(dim));
    }
    Tensor by_class(const Tensor& weight, int64_t dims) const {
        Dims shape(static_cast<size_t>(dims), 1);
        shape[static_cast<size_t>(dim)] = count;
        return weight.reshape(shape);
    }
};

Tensor nll_gradient(const Tensor& grad, const Tensor& input, const Tensor& target, const Given& weight, diopiReduction_t reduction,
                    int64_t ignore_index) {
    const Classes classes(input, target, weight, ignore_index);
    return classes.spread(-classes.weights * classes.upstream(grad, reduction), upcast(input));
}

// The gradient of the logarithms of the probabilities, targets being class indices.
Tensor index_gradient(const Tensor& grad, const Tensor& log_probs, const Tensor& target, const Given& weight,
                      diopiReduction_t reduction, int64_t ignore_index, double smoothing) {
    const Classes classes(log_probs, target, weight, ignore_index);
    const Tensor g = classes.upstream(grad, reduction);
    Tensor result = classes.spread(-(1 - smoothing) * classes.weights * g, log_probs);
    if (smoothing > 0) {
        Tensor even = (g * (-smoothing / static_cast<double>(classes.count))).unsqueeze(classes.dim);
        result = result + (weight ? even * classes.by_class(upcast(*weight), log_probs.dim()) : even);
    }
    return result;
}

// The same for targets that are probabilities.
Tensor probability_gradient(const Tensor& grad, const Tensor& log_probs, const Tensor& target, const Given& weight,
                            diopiReduction_t reduction, double smoothing) {
    check_same_shape(log_probs, target, "input and target");
    const int64_t dim = log_probs.dim() > 1 ? 1 : 0, count = log_probs.size(dim);
    Dims loss_shape(log_probs.sizes().begin(), log_probs.sizes().end());
    loss_shape.erase(loss_shape.begin() + dim);
    check_grad(grad, loss_shape, reduction);
    Tensor share = upcast(target);
    if (smoothing > 0) share = share * (1 - smoothing) + smoothing / static_cast<double>(count);
    if (weight) {
        TORCH_CHECK(weight->dim() == 1 && weight->size(0) == count, "weight must hold one number for each of the ", count, " classes");
        Dims shape(static_cast<size_t>(log_probs.dim()), 1);
        shape[static_cast<size_t>(dim)] = count;
        share = share * upcast(*weight).reshape(shape);
    }
    Tensor g = behind(grad, reduction).expand(loss_shape).unsqueeze(dim);
    if (reduction == ReductionMean) g = g / (static_cast<double>(log_probs.numel()) / static_cast<double>(count));
    return -share * g;
}

void check_smoothing(double smoothing) {
    TORCH_CHECK(smoothing >= 0 && smoothing <= 1, "label_smoothing must be between 0 and 1, not ", smoothing);
}

// ---- focal loss ----

struct Focal {
    Tensor x, t, p, missed, entropy;  // missed: 1 - the probability of the right answer, exact near 0 too
    double alpha, gamma;

    Focal(const Tensor& input, const Tensor& target, double alpha_, double gamma_) : alpha(alpha_), gamma(gamma_) {
        check_same_shape(input, target, "input and target");
        TORCH_CHECK(input.is_floating_point(), "the input must be of a floating dtype");
        x = upcast(input);
        t = target.to(x.scalar_type());
        p = at::sigmoid(x);
        missed = p * (1 - t) + at::sigmoid(-x) * t;
        entropy = at::binary_cross_entropy_with_logits(x, t, {}, {}, at::Reduction::None);
    }
    Tensor balanced(const Tensor& values) const { return alpha < 0 ? values : values * (alpha * t + (1 - alpha) * (1 - t)); }
    Tensor loss() const { return balanced(entropy * at::pow(missed, gamma)); }
    Tensor gradient() const {
        Tensor slope = (p - t) * at::pow(missed, gamma);
        if (gamma != 0) slope = slope - gamma * at::pow(missed, gamma - 1) * p * at::sigmoid(-x) * (2 * t - 1) * entropy;
        return balanced(slope);
    }
};

}  // namespace

// ---- differences ----

diopiError_t diopiSmoothL1Loss(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                               diopiConstTensorHandle_t target, diopiReduction_t reduction, double beta) {
    return run(ctx, __func__, [](Tensor& o, Tensor& x, Tensor& t, diopiReduction_t reduction, double beta) {
        check_reduction(reduction);
        write(o, at::smooth_l1_loss(upcast(x), upcast(t), reduction, beta));
    }, out, input, target, reduction, beta);
}

diopiError_t diopiSmoothL1LossBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                       diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, diopiReduction_t reduction,
                                       double beta) {
    return run(ctx, __func__, [](Tensor& o, Tensor& g, Tensor& x, Tensor& t, diopiReduction_t reduction, double beta) {
        check_reduction(reduction);
        TORCH_CHECK(beta >= 0, "beta must not be negative, it is ", beta);
        check_same_shape(x, t, "input and target");
        check_grad(g, x.sizes(), reduction);
        const Tensor difference = upcast(x) - upcast(t);
        write(o, chained(beta > 0 ? (difference / beta).clamp(-1, 1) : difference.sign(), g, reduction));
    }, grad_input, grad_output, input, target, reduction, beta);
}

// ---- binary cross entropy ----

diopiError_t diopiBCELoss(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                          diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight, diopiReduction_t reduction) {
    return run(ctx, __func__, [](Tensor& o, Tensor& x, Tensor& t, Given w, diopiReduction_t reduction) {
        check_reduction(reduction);
        check_same_shape(x, t, "input and target");
        write(o, at::binary_cross_entropy(upcast(x), upcast(t), upcast_if_given(w), reduction));
    }, out, input, target, maybe(weight), reduction);
}

diopiError_t diopiBCELossBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                  diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight,
                                  diopiReduction_t reduction) {
    return run(ctx, __func__, [](Tensor& o, Tensor& g, Tensor& x, Tensor& t, Given w, diopiReduction_t reduction) {
        check_reduction(reduction);
        check_same_shape(x, t, "input and target");
        check_grad(g, x.sizes(), reduction);
        const Tensor ones = at::ones({}, upcast(x).options());
        write(o, chained(at::binary_cross_entropy_backward(ones, upcast(x), upcast(t), upcast_if_given(w), at::Reduction::None), g, reduction));
    }, grad_input, grad_output, input, target, maybe(weight), reduction);
}

diopiError_t diopiBCEWithLogits(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                                diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight, diopiConstTensorHandle_t pos_weight,
                                diopiReduction_t reduction) {
    return run(ctx, __func__, [](Tensor& o, Tensor& x, Tensor& t, Given w, Given positive, diopiReduction_t reduction) {
        check_reduction(reduction);
        write(o, at::binary_cross_entropy_with_logits(upcast(x), upcast(t), upcast_if_given(w), upcast_if_given(positive), reduction));
    }, out, input, target, maybe(weight), maybe(pos_weight), reduction);
}

diopiError_t diopiBCEWithLogitsBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                        diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight,
                                        diopiConstTensorHandle_t pos_weight, diopiReduction_t reduction) {
    return run(ctx, __func__, [](Tensor& o, Tensor& g, Tensor& input, Tensor& target, Given w, Given positive, diopiReduction_t reduction) {
        check_reduction(reduction);
        check_same_shape(input, target, "input and target");
        check_grad(g, input.sizes(), reduction);
        const Tensor x = upcast(input), t = upcast(target);
        const Tensor right = positive ? upcast(*positive) * t : t;
        const Tensor slope = (1 - t) * at::sigmoid(x) - right * at::sigmoid(-x);  // exact near 0, unlike sigmoid(x) - t
        write(o, chained(w ? slope * upcast(*w) : slope, g, reduction));
    }, grad_input, grad_output, input, target, maybe(weight), maybe(pos_weight), reduction);
}

diopiError_t diopiSigmoidFocalLoss(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t inputs,
                                   diopiConstTensorHandle_t targets, float alpha, float gamma, diopiReduction_t reduction) {
    return run(ctx, __func__, [](Tensor& o, Tensor& x, Tensor& t, float alpha, float gamma, diopiReduction_t reduction) {
        check_reduction(reduction);
        write(o, reduced(Focal(x, t, alpha, gamma).loss(), reduction));
    }, out, inputs, targets, alpha, gamma, reduction);
}

diopiError_t diopiSigmoidFocalLossBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_output, diopiConstTensorHandle_t input,
                                           diopiConstTensorHandle_t target, diopiTensorHandle_t grad_input, float gamma, float alpha,
                                           diopiReduction_t reduction) {
    return run(ctx, __func__, [](Tensor& g, Tensor& x, Tensor& t, Tensor& o, float gamma, float alpha, diopiReduction_t reduction) {
        check_reduction(reduction);
        check_grad(g, x.sizes(), reduction);
        write(o, chained(Focal(x, t, alpha, gamma).gradient(), g, reduction));
    }, diopiConstTensorHandle_t(grad_output), input, target, grad_input, gamma, alpha, reduction);
}

// ---- classes ----

diopiError_t diopiNLLLoss(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                          diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight, diopiReduction_t reduction,
                          int64_t ignore_index) {
    return run(ctx, __func__, [](Tensor& o, Tensor& x, Tensor& t, Given w, diopiReduction_t reduction, int64_t ignore_index) {
        check_reduction(reduction);
        checked_targets(x, t, w, ignore_index);
        write(o, at::nll_loss_nd(upcast(x), t.to(at::kLong), upcast_if_given(w), reduction, ignore_index));
    }, out, input, target, maybe(weight), reduction, ignore_index);
}

diopiError_t diopiNLLLossBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                  diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight,
                                  diopiReduction_t reduction, int64_t ignore_index) {
    return run(ctx, __func__, [](Tensor& o, Tensor& g, Tensor& x, Tensor& t, Given w, diopiReduction_t reduction, int64_t ignore_index) {
        check_reduction(reduction);
        write(o, nll_gradient(g, x, t, w, reduction, ignore_index));
    }, grad_input, grad_output, input, target, maybe(weight), reduction, ignore_index);
}

diopiError_t diopiCrossEntropyLoss(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                                   diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight, diopiReduction_t reduction,
                                   int64_t ignore_index, double label_smoothing) {
    return run(ctx, __func__,
        [](Tensor& o, Tensor& x, Tensor& t, Given w, diopiReduction_t reduction, int64_t ignore_index, double smoothing) {
            check_reduction(reduction);
            check_smoothing(smoothing);
            const bool by_index = !t.is_floating_point();
            if (by_index) checked_targets(x, t, w, ignore_index);
            const Tensor target = by_index ? t.to(at::kLong) : upcast(t);
            write(o, at::cross_entropy_loss(upcast(x), target, upcast_if_given(w), reduction, ignore_index, smoothing));
        }, out, input, target, maybe(weight), reduction, ignore_index, label_smoothing);
}

diopiError_t diopiCrossEntropyLossBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                           diopiConstTensorHandle_t input, diopiConstTensorHandle_t target,
                                           diopiConstTensorHandle_t weight, diopiReduction_t reduction, int64_t ignore_index,
                                           double label_smoothing) {
    return run(ctx, __func__,
        [](Tensor& o, Tensor& g, Tensor& x, Tensor& t, Given w, diopiReduction_t reduction, int64_t ignore_index, double smoothing) {
            check_reduction(reduction);
            check_smoothing(smoothing);
            TORCH_CHECK(x.dim() > 0, "the input must have a dimension of classes");
            const int64_t dim = x.dim() > 1 ? 1 : 0;
            const Tensor log_probs = at::log_softmax(upcast(x), dim);
            const Tensor slope = t.is_floating_point() ? probability_gradient(g, log_probs, t, w, reduction, smoothing)
                                                       : index_gradient(g, log_probs, t, w, reduction, ignore_index, smoothing);
            write(o, at::_log_softmax_backward_data(slope, log_probs, dim, log_probs.scalar_type()));
        }, grad_input, grad_output, input, target, maybe(weight), reduction, ignore_index, label_smoothing);
}

// ---- with the total weight ----

diopiError_t diopiNLLLossV2(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t totalWeight,
                            diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight,
                            diopiReduction_t reduction, int64_t ignore_index) {
    return run(ctx, __func__, [](Tensor& o, Tensor& total, Tensor& x, Tensor& t, Given w, diopiReduction_t reduction, int64_t ignored) {
        check_reduction(reduction);
        checked_targets(x, t, w, ignored);
        // of images ATen adds the weights up in halves
        const auto [loss, sum] = x.dim() == 4 ? kernels::nll_loss2d_forward(for_sums(x), t, w ? Given(for_sums(*w)) : w, reduction, ignored)
                                              : kernels::nll_loss_forward(x, t, w, reduction, ignored);
        write(o, loss);
        write(total, sum);
    }, out, totalWeight, input, target, maybe(weight), reduction, ignore_index);
}

diopiError_t diopiNLLLossV2Backward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                    diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, diopiConstTensorHandle_t weight,
                                    diopiConstTensorHandle_t totalWeight, diopiReduction_t reduction, int64_t ignore_index) {
    return run(ctx, __func__, [](Tensor& o, Tensor& g, Tensor& x, Tensor& t, Given w, Tensor& total, diopiReduction_t reduction,
                                 int64_t ignore_index) {
        check_reduction(reduction);
        checked_targets(x, t, w, ignore_index);
        const bool direct = x.dim() <= 2 && o.is_contiguous() && o.sizes() == x.sizes() && o.scalar_type() == x.scalar_type();
        if (direct) return void(kernels::nll_loss_backward_out(o, g, x, t, w, reduction, ignore_index, total));
        // of images ATen wants a contiguous gradient, which it makes like the input
        write(o, x.dim() == 4 ? kernels::nll_loss2d_backward(g, x.contiguous(), t, w, reduction, ignore_index, total)
                              : kernels::nll_loss_backward(g, x, t, w, reduction, ignore_index, total));
    }, grad_input, grad_output, input, target, maybe(weight), totalWeight, reduction, ignore_index);
}
