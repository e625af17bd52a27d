// The loss of sequences without an alignment (CTC) and its gradient. Halves are computed in float32 and rounded once.
#include <ATen/ops/_ctc_loss.h>
#include <ATen/ops/_ctc_loss_backward.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>

#include "losses.h"

using namespace dipu_vendor;

namespace {

using at::Tensor;

std::vector<int64_t> numbers(const Tensor& tensor) {
    TORCH_CHECK(!tensor.is_floating_point() && !tensor.is_complex(), "lengths must be integers");
    const Tensor flat = tensor.to(at::kCPU, at::kLong).contiguous();
    return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

struct Sequences {
    Tensor log_probs, targets;
    std::vector<int64_t> steps, labels;
    int64_t width = 1;  // of the forward variables

    Sequences(const Tensor& probs, const Tensor& target, const Tensor& input_lengths, const Tensor& target_lengths, int64_t blank)
        : log_probs(upcast(probs)), steps(numbers(input_lengths)), labels(numbers(target_lengths)) {
        TORCH_CHECK(probs.dim() == 3, "log_probs must be of the shape [steps, sequences, classes], not ", probs.sizes());
        TORCH_CHECK(!target.is_floating_point() && !target.is_complex(), "targets must be class indices");
        const int64_t all = probs.size(1), classes = probs.size(2);
        TORCH_CHECK(all > 0 && count() == all && static_cast<int64_t>(labels.size()) == all,
                    "there must be one input length and one target length for each of the ", all, " sequences");
        TORCH_CHECK(target.dim() == 1 || (target.dim() == 2 && target.size(0) == all),
                    "targets must have one dimension, or one row for each sequence");
        TORCH_CHECK(blank >= 0 && blank < classes, "blank must be a class in [0, ", classes, "), not ", blank);
        targets = target.to(at::kLong).contiguous();
        check_labels(classes);
        for (const int64_t length : labels) width = std::max(width, 2 * length + 1);
    }
    // ATen looks the labels up without a check.
    void check_labels(int64_t classes) const {
        const bool rows = targets.dim() == 2;
        int64_t start = 0;
        for (int64_t i = 0; i < count(); ++i) {
            TORCH_CHECK(steps[i] >= 0 && steps[i] <= log_probs.size(0), "an input length is ", steps[i], " of ", log_probs.size(0),
                        " steps");
            const int64_t room = rows ? targets.size(1) : targets.numel() - start;
            TORCH_CHECK(labels[i] >= 0 && labels[i] <= room, "a target length is ", labels[i], " where there are ", room, " labels");
            const Tensor own = rows ? targets[i].narrow(0, 0, labels[i]) : targets.narrow(0, start, labels[i]);
            TORCH_CHECK(!labels[i] || (own.min().item<int64_t>() >= 0 && own.max().item<int64_t>() < classes),
                        "a label is not a class: they must be in [0, ", classes, ")");
            start += labels[i];
        }
    }
    int64_t count() const { return static_cast<int64_t>(steps.size()); }

    void check_forward(const Tensor& log_alpha) const {
        const bool fits = log_alpha.dim() == 3 && log_alpha.size(0) == count() && log_alpha.size(1) == log_probs.size(0);
        TORCH_CHECK(fits && log_alpha.size(2) >= width, "log_alpha must be of the shape [", count(), ", ", log_probs.size(0), ", ", width,
                    "], not ", log_alpha.sizes());
    }
    // ATen leaves open what is behind a sequence's lengths; here it is always the logarithm of 0.
    void put_forward(Tensor& out, const Tensor& log_alpha) const {
        check_forward(out);
        out.fill_(-std::numeric_limits<double>::infinity());
        for (int64_t i = 0; i < count(); ++i) {
            const int64_t wide_enough = std::min(2 * labels[i] + 1, log_alpha.size(2));
            const auto written = [&](const Tensor& all) { return all[i].narrow(0, 0, steps[i]).narrow(1, 0, wide_enough); };
            written(out).copy_(written(log_alpha));
        }
    }
    Tensor lengths() const { return at::tensor(labels, log_probs.options()).clamp_min(1); }
};

}  // namespace

diopiError_t diopiCTCLoss(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t neg_log_likelihood,
                          diopiTensorHandle_t log_alpha, diopiConstTensorHandle_t log_probs, diopiConstTensorHandle_t targets,
                          diopiConstTensorHandle_t input_lengths, diopiConstTensorHandle_t target_lengths, int64_t blank,
                          diopiReduction_t reduction, bool zero_infinity) {
    return run(ctx, __func__,
        [](Tensor& o, Tensor& each_out, Tensor& forward_out, Tensor& probs, Tensor& t, Tensor& steps, Tensor& labels, int64_t blank,
           diopiReduction_t reduction, bool zero_infinity) {
            check_reduction(reduction);
            const Sequences given(probs, t, steps, labels, blank);
            const auto [each, forward] = at::_ctc_loss(given.log_probs, given.targets, given.steps, given.labels, blank, zero_infinity);
            write(each_out, each);
            given.put_forward(forward_out, forward);
            Tensor loss = zero_infinity ? at::where(each.isinf(), at::zeros_like(each), each) : each;
            if (reduction == ReductionMean) loss = loss / given.lengths();
            write(o, reduced(loss, reduction));
        }, out, neg_log_likelihood, log_alpha, log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity);
}

diopiError_t diopiCTCLossBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                  diopiConstTensorHandle_t log_probs, diopiConstTensorHandle_t targets,
                                  diopiConstTensorHandle_t input_lengths, diopiConstTensorHandle_t target_lengths,
                                  diopiConstTensorHandle_t neg_log_likelihood, diopiConstTensorHandle_t log_alpha, int64_t blank,
                                  diopiReduction_t reduction, bool zero_infinity) {
    return run(ctx, __func__,
        [](Tensor& o, Tensor& g, Tensor& probs, Tensor& t, Tensor& steps, Tensor& labels, Tensor& each, Tensor& forward, int64_t blank,
           diopiReduction_t reduction, bool zero_infinity) {
            check_reduction(reduction);
            const Sequences given(probs, t, steps, labels, blank);
            given.check_forward(forward);
            TORCH_CHECK(each.dim() == 1 && each.size(0) == given.count(), "neg_log_likelihood must hold one number for each sequence");
            check_grad(g, each.sizes(), reduction);
            Tensor grad = behind(g, reduction).expand({given.count()});
            if (reduction == ReductionMean) grad = grad / given.lengths() / static_cast<double>(given.count());
            write(o, at::_ctc_loss_backward(grad.contiguous(), given.log_probs, given.targets, given.steps, given.labels, upcast(each),
                                          upcast(forward).narrow(2, 0, given.width).contiguous(), blank, zero_infinity));
        }, grad_input, grad_output, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, log_alpha, blank, reduction,
        zero_infinity);
}
