// Attention of one sequence, as its definition in matrices; what the fused kernels take goes to those (fused_attention.cpp).
#include "attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>

namespace dipu_vendor {
namespace {

using at::Tensor;

// Heads first; keys and values once for each head of the queries.
Tensor by_head(const Tensor& rows, int64_t heads) {
    return rows.transpose(0, 1).repeat_interleave(heads / rows.size(1), 0);
}

// What heads share is added up: [heads, length, width] -> [length, key heads, width].
Tensor by_length(const Tensor& by_heads, int64_t key_heads) {
    return by_heads.unflatten(0, {key_heads, by_heads.size(0) / key_heads}).sum(1).transpose(0, 1);
}

// The scores of all queries, -inf where a key takes no part, [heads, queries, keys].
struct Scores {
    int64_t heads, queries, keys;
    Tensor q, k, v, hidden, values;  // `hidden` is undefined if every key is seen

    Scores(const Sequence& s, const Scoring& scoring)
        : heads(s.q.size(1)), queries(s.q.size(0)), keys(s.k.size(0)), q(s.q.transpose(0, 1)), k(by_head(s.k, heads)), v(by_head(s.v, heads)) {
        values = at::matmul(q, k.mT()) * scoring.scale;
        const auto whole = s.q.options().dtype(at::kLong);
        const Tensor ahead = at::arange(keys, whole) - (at::arange(queries, whole) + (keys - queries)).unsqueeze(1);  // of the opposite key
        if (s.slopes.defined()) values = values - s.slopes.view({heads, 1, 1}) * ahead.abs();
        const int64_t right = scoring.causal ? 0 : scoring.right;
        if (scoring.left >= 0) hide(ahead.lt(-scoring.left));
        if (right >= 0) hide(ahead.gt(right));
        if (s.mask.defined()) hide(s.mask);
        if (hidden.defined()) values = values.masked_fill(hidden, -std::numeric_limits<double>::infinity());
    }

    // The share of each weight after dropout; undefined: all of it.
    static Tensor kept(const Sequence& s, const Scoring& scoring) {
        if (!s.keep.defined()) return {};
        return s.keep.to(s.q.scalar_type()) * (scoring.dropout < 1 ? 1 / (1 - scoring.dropout) : 1.0);
    }

   private:
    void hide(const Tensor& more) { hidden = hidden.defined() ? hidden.logical_or(more) : more; }
};

}  // namespace

Attended attend(const Sequence& sequence, const Scoring& scoring) {
    const Scores scores(sequence, scoring);
    const auto options = sequence.q.options();
    if (scores.keys == 0)
        return {at::zeros({scores.queries, scores.heads, sequence.v.size(2)}, options),
                at::full({scores.heads, scores.queries}, -std::numeric_limits<double>::infinity(), options),
                at::zeros({scores.heads, scores.queries}, options)};
    const Tensor largest = scores.values.amax(-1), unseen = largest.isinf().unsqueeze(-1);
    const Tensor weights = at::where(unseen, at::zeros({}, options), (scores.values - largest.unsqueeze(-1)).exp());
    const Tensor sum = weights.sum(-1), kept = Scores::kept(sequence, scoring);
    const Tensor mixed = at::matmul(kept.defined() ? weights * kept : weights, scores.v) / sum.unsqueeze(-1);
    return {mixed.masked_fill(unseen, 0).transpose(0, 1), largest, sum};
}

Gradients attend_backward(const Sequence& sequence, const Scoring& scoring, const Tensor& grad, const Tensor& out, const Tensor& lse) {
    const Scores scores(sequence, scoring);
    const int64_t key_heads = sequence.k.size(1);
    const Tensor g = grad.transpose(0, 1), kept = Scores::kept(sequence, scoring);
    Tensor weights = (scores.values - lse.unsqueeze(-1)).exp();
    if (scores.hidden.defined()) weights = weights.masked_fill(scores.hidden, 0);
    const Tensor share = (g * out.transpose(0, 1)).sum(-1, /*keepdim=*/true), towards = at::matmul(g, scores.v.mT());
    const Tensor slope = weights * ((kept.defined() ? towards * kept : towards) - share) * scoring.scale;
    return {at::matmul(slope, scores.k).transpose(0, 1), by_length(at::matmul(slope.mT(), scores.q), key_heads),
            by_length(at::matmul((kept.defined() ? weights * kept : weights).mT(), g), key_heads)};
}

}  // namespace dipu_vendor
