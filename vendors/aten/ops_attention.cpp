// Attention, forward: dense, packed, and the customized forms with masks and layouts.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "attention.h"

using namespace dipu_vendor;

namespace {

// All sequences; `each(b, attended)` sees what is left of every one.
template <class Each>
at::Tensor attend_all(const Operands& operands, const Scoring& scoring, Each each) {
    check_scoring(scoring);
    at::Tensor out = operands.empty_out();
    for (int64_t b = 0; b < operands.count(); ++b) {
        const Attended made = attend(operands.sequence(b), scoring);
        operands.of_queries(out, b).copy_(made.out);
        each(b, made);
    }
    return out;
}

// Output and logarithms of the divisors [batch, heads, longest], which are 0 behind the end of a sequence.
void forward(at::Tensor& out, const Maybes& lse, const Operands& operands, const Scoring& scoring, int64_t longest) {
    const Dims sizes{operands.count(), operands.heads(), longest};
    if (lse) check_shape(*lse, sizes, "softmax_lse");  // before anything of that shape is made: a wrong one must not ask for all memory
    at::Tensor logarithms = lse ? at::zeros(sizes, operands.q.options()) : at::Tensor();
    const at::Tensor made = attend_all(operands, scoring, [&](int64_t b, const Attended& attended) {
        if (lse) logarithms.select(0, b).narrow(1, 0, operands.queries(b)).copy_(attended.lse());
    });
    write(out, made, "the output");
    write(lse, logarithms, "softmax_lse");
}

// Where a key takes part for a query; false behind the ends of sequences.
void write_visible(const Maybes& out, const Operands& operands, const Scoring& scoring, int64_t longest_q, int64_t longest_k) {
    const Dims sizes{operands.count(), operands.heads(), longest_q, longest_k};
    TORCH_CHECK(out, "debug_attn_mask is NULL, but return_debug_mask is set");
    check_shape(*out, sizes, "debug_attn_mask");
    at::Tensor seen = at::zeros(sizes, operands.q.options().dtype(at::kBool));
    for (int64_t b = 0; b < operands.count(); ++b) {
        const int64_t queries = operands.queries(b), keys = operands.keys(b);
        at::Tensor own = seen.select(0, b).narrow(1, 0, queries).narrow(2, 0, keys);
        for (int64_t query = 0; query < queries; ++query) {
            const int64_t count = scoring.causal ? std::clamp<int64_t>(query + keys - queries + 1, 0, keys) : keys;
            own.select(1, query).narrow(1, 0, count).fill_(true);
        }
        const at::Tensor keep = operands.sequence(b).keep;
        if (keep.defined()) own.logical_and_(keep);
    }
    write(out, seen, "debug_attn_mask");
}

// What the customized functions give beside their output.
struct Saved {
    at::Tensor largest, sum;
    void into(diopiContextHandle_t ctx, diopiTensorHandle_t* softmax_max, diopiTensorHandle_t* softmax_sum) const {
        if (softmax_max) *softmax_max = require_like(ctx, eightfold(largest));
        if (softmax_sum) *softmax_sum = require_like(ctx, eightfold(sum));
    }
    static at::Tensor eightfold(const at::Tensor& rows) {
        Dims sizes(rows.sizes().begin(), rows.sizes().end());
        sizes.push_back(kSavedWidth);
        return rows.unsqueeze(-1).expand(sizes).contiguous();
    }
};

void make_own(diopiContextHandle_t ctx, const at::Tensor& keep, const at::Tensor& q, diopiTensorHandle_t* dropout_mask,
              diopiTensorHandle_t* softmax_out) {
    if (dropout_mask && keep.defined()) *dropout_mask = require_like(ctx, keep);
    if (softmax_out) *softmax_out = require_like(ctx, at::empty({0}, q.options()));
}

}  // namespace

diopiError_t diopiMultiHeadAttention(diopiContextHandle_t ctx, diopiTensorHandle_t q, diopiTensorHandle_t k, diopiTensorHandle_t v,
                                     double dropout_p, bool is_causal, bool return_debug_mask, double scale, diopiTensorHandle_t out,
                                     diopiTensorHandle_t softmax_lse, diopiGeneratorHandle_t gen, diopiTensorHandle_t debug_attn_mask) {
    Kept kept;
    if (const auto error = draw_now(ctx, __func__, gen, dropout_p, true, kept, [&] { return dense_sizes(q, k); })) return error;
    return run(
        ctx, __func__,
        [](at::Tensor& q, at::Tensor& k, at::Tensor& v, Scoring scoring, bool debug, at::Tensor& o, Maybes& lse, Kept& kept, Maybes& seen) {
            const Operands operands = with(dense(q, k, v), std::nullopt, {}, kept.tensor);
            forward(o, lse, operands, scoring, q.size(1));
            if (debug) write_visible(seen, operands, scoring, q.size(1), k.size(1));
        },
        diopiConstTensorHandle_t(q), diopiConstTensorHandle_t(k), diopiConstTensorHandle_t(v), Scoring{scale, is_causal, -1, -1, dropout_p},
        return_debug_mask, out, maybe(softmax_lse), kept, maybe(debug_attn_mask));
}

diopiError_t diopiMultiHeadAttentionVarLen(diopiContextHandle_t ctx, diopiTensorHandle_t q, diopiTensorHandle_t k, diopiTensorHandle_t v,
                                           diopiConstTensorHandle_t cum_seq_q, diopiConstTensorHandle_t cum_seq_k, int64_t max_q,
                                           int64_t max_k,
                                           double dropout_p, bool is_causal, bool return_debug_mask, double scale, diopiTensorHandle_t out,
                                           diopiTensorHandle_t softmax_lse, diopiGeneratorHandle_t gen,
                                           diopiTensorHandle_t debug_attn_mask) {
    Kept kept;
    const auto sizes = [&] { return packed_sizes(q, k, view(cum_seq_q).size(0) - 1, max_q, max_k); };
    if (const auto error = draw_now(ctx, __func__, gen, dropout_p, true, kept, sizes)) return error;
    return run(
        ctx, __func__,
        [](at::Tensor& q, at::Tensor& k, at::Tensor& v, at::Tensor& ends_q, at::Tensor& ends_k, int64_t max_q, int64_t max_k,
           Scoring scoring, bool debug, at::Tensor& o, Maybes& lse, Kept& kept, Maybes& seen) {
            check_operands(q, k, v, 3);
            Spans spans = spans_of(integers(ends_q, "cum_seq_q"), integers(ends_k, "cum_seq_k"), q, k, max_q, max_k);
            const Operands operands = with(packed(q, k, v, std::move(spans)), std::nullopt, {}, kept.tensor);
            forward(o, lse, operands, scoring, max_q);
            if (debug) write_visible(seen, operands, scoring, max_q, max_k);
        },
        diopiConstTensorHandle_t(q), diopiConstTensorHandle_t(k), diopiConstTensorHandle_t(v), cum_seq_q, cum_seq_k, max_q, max_k,
        Scoring{scale, is_causal, -1, -1, dropout_p}, return_debug_mask, out, maybe(softmax_lse), kept, maybe(debug_attn_mask));
}

diopiError_t diopiFlashAttention(diopiContextHandle_t ctx, diopiTensorHandle_t attention_out, diopiTensorHandle_t softmax_lse,
                                 diopiGeneratorHandle_t gen, diopiConstTensorHandle_t q, diopiConstTensorHandle_t k,
                                 diopiConstTensorHandle_t v,
                                 diopiConstTensorHandle_t alibi_slopes, float p_dropout, float softmax_scale, bool is_causal,
                                 int32_t window_size_left, int32_t window_size_right) {
    Kept kept;
    if (const auto error = draw_now(ctx, __func__, gen, p_dropout, true, kept, [&] { return dense_sizes(q, k); })) return error;
    return run(
        ctx, __func__,
        [](at::Tensor& o, Maybes& lse, at::Tensor& q, at::Tensor& k, at::Tensor& v, Maybes& slopes, Scoring scoring, Kept& kept) {
            if (attend_fused(o, lse, q, k, v, slopes, scoring)) return;
            forward(o, lse, with(dense(q, k, v), slopes, {}, kept.tensor), scoring, q.size(1));
        },
        attention_out, maybe(softmax_lse), q, k, v, maybe(alibi_slopes),
        Scoring{softmax_scale, is_causal, window_size_left, window_size_right, p_dropout}, kept);
}

diopiError_t diopiFlashAttentionVarLen(diopiContextHandle_t ctx, diopiTensorHandle_t attention_out, diopiTensorHandle_t softmax_lse,
                                       diopiGeneratorHandle_t gen, diopiConstTensorHandle_t q, diopiConstTensorHandle_t k,
                                       diopiConstTensorHandle_t v, diopiConstTensorHandle_t cum_seq_q, diopiConstTensorHandle_t cum_seq_kv,
                                       diopiConstTensorHandle_t alibi_slopes, int32_t max_seqlen_q, int32_t max_seqlen_kv, float p_dropout,
                                       float softmax_scale, bool is_causal, int32_t window_size_left, int32_t window_size_right) {
    Kept kept;
    const auto sizes = [&] { return packed_sizes(q, k, view(cum_seq_q).size(0) - 1, max_seqlen_q, max_seqlen_kv); };
    if (const auto error = draw_now(ctx, __func__, gen, p_dropout, true, kept, sizes)) return error;
    return run(
        ctx, __func__,
        [](at::Tensor& o, Maybes& lse, at::Tensor& q, at::Tensor& k, at::Tensor& v, at::Tensor& ends_q, at::Tensor& ends_k, Maybes& slopes,
           int64_t max_q, int64_t max_k, Scoring scoring, Kept& kept) {
            check_operands(q, k, v, 3);
            Spans spans = spans_of(integers(ends_q, "cum_seq_q"), integers(ends_k, "cum_seq_kv"), q, k, max_q, max_k);
            forward(o, lse, with(packed(q, k, v, std::move(spans)), slopes, {}, kept.tensor), scoring, max_q);
        },
        attention_out, maybe(softmax_lse), q, k, v, cum_seq_q, cum_seq_kv, maybe(alibi_slopes), int64_t(max_seqlen_q),
        int64_t(max_seqlen_kv), Scoring{softmax_scale, is_causal, window_size_left, window_size_right, p_dropout}, kept);
}

diopiError_t diopiCustomizedFlashAttention(diopiContextHandle_t ctx, diopiTensorHandle_t attention_out, diopiTensorHandle_t* dropout_mask,
                                           diopiTensorHandle_t* softmax_max, diopiTensorHandle_t* softmax_sum,
                                           diopiTensorHandle_t* softmax_out,
                                           diopiGeneratorHandle_t gen, diopiConstTensorHandle_t q, diopiConstTensorHandle_t k,
                                           diopiConstTensorHandle_t v, diopiConstTensorHandle_t alibi_slopes,
                                           diopiConstTensorHandle_t attention_mask, float p_dropout, float softmax_scale, bool is_causal,
                                           int32_t window_size_left, int32_t window_size_right, int32_t head_num,
                                           const char* input_layout) {
    return run_now(ctx, __func__, [&] {
        const Scoring scoring{softmax_scale, is_causal, window_size_left, window_size_right, p_dropout};
        const std::string layout = argument(input_layout);
        const at::Tensor queries = view(q), keys = view(k), values = view(v);
        const int64_t key_heads = key_heads_of(queries, keys, layout, head_num);
        Operands operands = dense(by_length(queries, layout, head_num), by_length(keys, layout, key_heads),
                                  by_length(values, layout, key_heads));
        const Dims sizes{operands.count(), operands.heads(), operands.q.size(1), operands.k.size(1)};
        operands = with(operands, optional_view(alibi_slopes), view_or_undefined(attention_mask),
                        drawn_keep(ctx, gen, p_dropout, sizes, true));
        const at::Tensor rows = at::zeros({sizes[0], sizes[1], sizes[2]}, operands.q.options());
        const Saved saved{rows, rows.clone()};
        const at::Tensor made = attend_all(operands, scoring, [&](int64_t b, const Attended& attended) {
            saved.largest.select(0, b).copy_(attended.largest);
            saved.sum.select(0, b).copy_(attended.sum);
        });
        at::Tensor out = view(attention_out);
        write(out, in_layout(made, layout), "attention_out");
        saved.into(ctx, softmax_max, softmax_sum);
        make_own(ctx, operands.keep, queries, dropout_mask, softmax_out);
    });
}

diopiError_t diopiCustomizedFlashAttentionVarLen(diopiContextHandle_t ctx, diopiTensorHandle_t attention_out,
                                                 diopiTensorHandle_t* dropout_mask,
                                                 diopiTensorHandle_t* softmax_max, diopiTensorHandle_t* softmax_sum,
                                                 diopiTensorHandle_t* softmax_out, diopiGeneratorHandle_t gen, diopiConstTensorHandle_t q,
                                                 diopiConstTensorHandle_t k, diopiConstTensorHandle_t v, diopiSize_t cum_seq_q,
                                                 diopiSize_t cum_seq_kv, diopiConstTensorHandle_t alibi_slopes,
                                                 diopiConstTensorHandle_t attention_mask, int32_t max_seqlen_q, int32_t max_seqlen_kv,
                                                 float p_dropout, float softmax_scale, bool is_causal, int32_t window_size_left,
                                                 int32_t window_size_right) {
    return run_now(ctx, __func__, [&] {
        const Scoring scoring{softmax_scale, is_causal, window_size_left, window_size_right, p_dropout};
        const at::Tensor queries = view(q), keys = view(k), values = view(v);
        check_operands(queries, keys, values, 3);
        Spans spans = spans_of(from_ends(dims(cum_seq_q)), from_ends(dims(cum_seq_kv)), queries, keys, max_seqlen_q, max_seqlen_kv);
        const Dims sizes = packed_sizes(q, k, spans.count(), max_seqlen_q, max_seqlen_kv);
        const Operands operands = with(packed(queries, keys, values, std::move(spans)), optional_view(alibi_slopes),
                                       view_or_undefined(attention_mask), drawn_keep(ctx, gen, p_dropout, sizes, true));
        const at::Tensor rows = at::zeros({queries.size(0), queries.size(1)}, operands.q.options());
        const Saved saved{rows, rows.clone()};
        const at::Tensor made = attend_all(operands, scoring, [&](int64_t b, const Attended& attended) {
            operands.of_queries(saved.largest, b).copy_(attended.largest.transpose(0, 1));
            operands.of_queries(saved.sum, b).copy_(attended.sum.transpose(0, 1));
        });
        at::Tensor out = view(attention_out);
        write(out, made, "attention_out");
        saved.into(ctx, softmax_max, softmax_sum);
        make_own(ctx, operands.keep, queries, dropout_mask, softmax_out);
    });
}
