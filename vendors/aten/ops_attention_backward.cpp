// Attention, backward: dense, packed, and the customized forms.
#include <ATen/TensorOperators.h>
#include <ATen/ops/log.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "attention.h"

using namespace dipu_vendor;

namespace {

// The saved logarithms, of the accumulation dtype: [batch, heads, at least the longest sequence].
at::Tensor logarithms_of(const at::Tensor& lse, const Operands& operands) {
    TORCH_CHECK(lse.dim() == 3 && lse.size(0) == operands.count() && lse.size(1) == operands.heads(), "softmax_lse has the shape ",
                lse.sizes(),
                ", but there are ", operands.count(), " sequences of ", operands.heads(), " heads");
    for (int64_t b = 0; b < operands.count(); ++b)
        TORCH_CHECK(operands.spans ? lse.size(2) >= operands.queries(b) : lse.size(2) == operands.queries(b), "softmax_lse is for ",
                    lse.size(2),
                    " queries, but there are ", operands.queries(b));
    return lse.to(operands.q.scalar_type());
}

// `lse(b)` gives the logarithms of one sequence [heads, queries].
template <class Lse>
Gradients backward(const Operands& operands, const Scoring& scoring, const at::Tensor& grad, const at::Tensor& out, Lse lse) {
    check_scoring(scoring);
    const at::Tensor like = operands.empty_out();
    TORCH_CHECK(grad.sizes() == like.sizes() && out.sizes() == like.sizes(), "the output and its gradient have the shapes ", out.sizes(),
                " and ", grad.sizes(), " instead of ", like.sizes());
    const at::Tensor grads = grad.to(like.scalar_type()).contiguous(), outs = out.to(like.scalar_type()).contiguous();
    Gradients made{at::zeros_like(operands.q), at::zeros_like(operands.k), at::zeros_like(operands.v)};
    for (int64_t b = 0; b < operands.count(); ++b) {
        const Gradients own = attend_backward(operands.sequence(b), scoring, operands.of_queries(grads, b), operands.of_queries(outs, b),
                                              lse(b).contiguous());
        operands.of_queries(made.q, b).copy_(own.q);
        operands.of_keys(made.k, b).copy_(own.k);
        operands.of_keys(made.v, b).copy_(own.v);
    }
    return made;
}

Gradients backward(const Operands& operands, const Scoring& scoring, const at::Tensor& grad, const at::Tensor& out, const at::Tensor& lse) {
    const at::Tensor logarithms = logarithms_of(lse, operands);
    return backward(operands, scoring, grad, out, [&](int64_t b) { return logarithms.select(0, b).narrow(1, 0, operands.queries(b)); });
}

void write(const Maybes& q, const Maybes& k, const Maybes& v, const Gradients& made) {
    dipu_vendor::write(q, made.q, "grad_q");
    dipu_vendor::write(k, made.k, "grad_k");
    dipu_vendor::write(v, made.v, "grad_v");
}

void dense_backward(Maybes& gq, Maybes& gk, Maybes& gv, at::Tensor& g, at::Tensor& q, at::Tensor& k, at::Tensor& v, Maybes& slopes,
                    at::Tensor& out, at::Tensor& lse, Scoring scoring, Kept& kept) {
    if (const auto fused = attend_fused_backward(g, q, k, v, slopes, out, lse, scoring)) return write(gq, gk, gv, *fused);
    write(gq, gk, gv, backward(with(dense(q, k, v), slopes, {}, kept.tensor), scoring, g, out, lse));
}

void packed_backward(Maybes& gq, Maybes& gk, Maybes& gv, at::Tensor& g, at::Tensor& q, at::Tensor& k, at::Tensor& v, at::Tensor& ends_q,
                     at::Tensor& ends_k, Maybes& slopes, at::Tensor& out, at::Tensor& lse, int64_t max_q, int64_t max_k, Scoring scoring,
                     Kept& kept) {
    check_operands(q, k, v, 3);
    Spans spans = spans_of(integers(ends_q, "cum_seq_q"), integers(ends_k, "the cumulative lengths of keys"), q, k, max_q, max_k);
    write(gq, gk, gv, backward(with(packed(q, k, v, std::move(spans)), slopes, {}, kept.tensor), scoring, g, out, lse));
}

// Maxima and sums of rows, eight times each, as logarithms of the divisors.
at::Tensor saved_lse(const at::Tensor& largest, const at::Tensor& sum, at::IntArrayRef rows, at::ScalarType type) {
    std::vector<int64_t> expected(rows.begin(), rows.end());
    expected.push_back(kSavedWidth);
    TORCH_CHECK(largest.sizes() == at::IntArrayRef(expected) && sum.sizes() == at::IntArrayRef(expected),
                "softmax_max and softmax_sum have the shapes ",
                largest.sizes(), " and ", sum.sizes(), " instead of ", at::IntArrayRef(expected));
    return at::log(sum.select(-1, 0).to(type)) + largest.select(-1, 0).to(type);
}

at::Tensor keep_given(diopiConstTensorHandle_t dropout_mask, double dropout) {
    TORCH_CHECK(dropout_mask || !(dropout > 0), "dropout_mask is NULL, but p_dropout is ", dropout);
    return dropout > 0 ? view(dropout_mask) : at::Tensor();
}

}  // namespace

diopiError_t diopiMultiHeadAttentionBackward(diopiContextHandle_t ctx, diopiConstTensorHandle_t grad_out, diopiConstTensorHandle_t q,
                                             diopiConstTensorHandle_t k, diopiConstTensorHandle_t v, diopiConstTensorHandle_t out,
                                             diopiConstTensorHandle_t softmax_lse, double dropout_p, bool is_causal,
                                             diopiGeneratorHandle_t gen,
                                             double scale, diopiTensorHandle_t grad_q, diopiTensorHandle_t grad_k,
                                             diopiTensorHandle_t grad_v) {
    Kept kept;
    if (const auto error = draw_now(ctx, __func__, gen, dropout_p, false, kept, [&] { return dense_sizes(q, k); })) return error;
    return run(ctx, __func__, dense_backward, maybe(grad_q), maybe(grad_k), maybe(grad_v), grad_out, q, k, v,
               maybe(diopiConstTensorHandle_t(nullptr)), out, softmax_lse, Scoring{scale, is_causal, -1, -1, dropout_p}, kept);
}

diopiError_t diopiMultiHeadAttentionVarLenBackward(diopiContextHandle_t ctx, diopiConstTensorHandle_t grad_out, diopiConstTensorHandle_t q,
                                                   diopiConstTensorHandle_t k, diopiConstTensorHandle_t v, diopiConstTensorHandle_t out,
                                                   diopiConstTensorHandle_t softmax_lse, diopiConstTensorHandle_t cum_seq_q,
                                                   diopiConstTensorHandle_t cum_seq_k, int64_t max_q, int64_t max_k, double dropout_p,
                                                   bool is_causal, diopiGeneratorHandle_t gen, double scale, diopiTensorHandle_t grad_q,
                                                   diopiTensorHandle_t grad_k, diopiTensorHandle_t grad_v) {
    Kept kept;
    const auto sizes = [&] { return packed_sizes(q, k, view(cum_seq_q).size(0) - 1, max_q, max_k); };
    if (const auto error = draw_now(ctx, __func__, gen, dropout_p, false, kept, sizes)) return error;
    return run(ctx, __func__, packed_backward, maybe(grad_q), maybe(grad_k), maybe(grad_v), grad_out, q, k, v, cum_seq_q, cum_seq_k,
               maybe(diopiConstTensorHandle_t(nullptr)), out, softmax_lse, max_q, max_k, Scoring{scale, is_causal, -1, -1, dropout_p},
               kept);
}

diopiError_t diopiFlashAttentionBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_q, diopiTensorHandle_t grad_k,
                                         diopiTensorHandle_t grad_v, diopiConstTensorHandle_t grad_output, diopiGeneratorHandle_t gen,
                                         diopiConstTensorHandle_t q, diopiConstTensorHandle_t k, diopiConstTensorHandle_t v,
                                         diopiConstTensorHandle_t alibi_slopes, diopiConstTensorHandle_t attention_out,
                                         diopiConstTensorHandle_t softmax_lse, float p_dropout, float softmax_scale, bool is_causal,
                                         int32_t window_size_left, int32_t window_size_right) {
    Kept kept;
    if (const auto error = draw_now(ctx, __func__, gen, p_dropout, false, kept, [&] { return dense_sizes(q, k); })) return error;
    return run(ctx, __func__, dense_backward, maybe(grad_q), maybe(grad_k), maybe(grad_v), grad_output, q, k, v, maybe(alibi_slopes),
               attention_out, softmax_lse, Scoring{softmax_scale, is_causal, window_size_left, window_size_right, p_dropout}, kept);
}

diopiError_t diopiFlashAttentionVarLenBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_q, diopiTensorHandle_t grad_k,
                                               diopiTensorHandle_t grad_v, diopiConstTensorHandle_t grad_output, diopiGeneratorHandle_t gen,
                                               diopiConstTensorHandle_t q, diopiConstTensorHandle_t k, diopiConstTensorHandle_t v,
                                               diopiConstTensorHandle_t cum_seq_q, diopiConstTensorHandle_t cum_seq_kv,
                                               diopiConstTensorHandle_t alibi_slopes, diopiConstTensorHandle_t attention_out,
                                               diopiConstTensorHandle_t softmax_lse, int32_t max_seqlen_q, int32_t max_seqlen_kv,
                                               float p_dropout,
                                               float softmax_scale, bool is_causal, int32_t window_size_left, int32_t window_size_right) {
    Kept kept;
    const auto sizes = [&] { return packed_sizes(q, k, view(cum_seq_q).size(0) - 1, max_seqlen_q, max_seqlen_kv); };
    if (const auto error = draw_now(ctx, __func__, gen, p_dropout, false, kept, sizes)) return error;
    return run(ctx, __func__, packed_backward, maybe(grad_q), maybe(grad_k), maybe(grad_v), grad_output, q, k, v, cum_seq_q, cum_seq_kv,
               maybe(alibi_slopes), attention_out, softmax_lse, int64_t(max_seqlen_q), int64_t(max_seqlen_kv),
               Scoring{softmax_scale, is_causal, window_size_left, window_size_right, p_dropout}, kept);
}

// The body reads ten optional and required tensors in a layout that is a text: `LAUNCH` with what it captures reads better than `run`.
diopiError_t diopiCustomizedFlashAttentionBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_q, diopiTensorHandle_t grad_k,
                                                   diopiTensorHandle_t grad_v, diopiConstTensorHandle_t grad_output,
                                                   diopiConstTensorHandle_t q, diopiConstTensorHandle_t k, diopiConstTensorHandle_t v,
                                                   diopiConstTensorHandle_t alibi_slopes,
                                                   diopiConstTensorHandle_t attention_out, diopiConstTensorHandle_t attention_mask,
                                                   diopiConstTensorHandle_t dropout_mask, diopiConstTensorHandle_t softmax_max,
                                                   diopiConstTensorHandle_t softmax_sum, diopiConstTensorHandle_t softmax_out,
                                                   float p_dropout,
                                                   float softmax_scale, bool is_causal, int32_t window_size_left, int32_t window_size_right,
                                                   int32_t head_num, const char* input_layout) {
    const Scoring scoring{softmax_scale, is_causal, window_size_left, window_size_right, p_dropout};
    return LAUNCH(ctx, __func__,
                  [scoring, gq = optional_view(grad_q), gk = optional_view(grad_k), gv = optional_view(grad_v), g = view(grad_output),
                   q = view(q), k = view(k), v = view(v), slopes = optional_view(alibi_slopes), out = view(attention_out),
                   mask = view_or_undefined(attention_mask), keep = keep_given(dropout_mask, p_dropout), largest = view(softmax_max),
                   sum = view(softmax_sum), heads = int64_t(head_num), layout = argument(input_layout)] {
                      const int64_t key_heads = key_heads_of(q, k, layout, heads);
                      const auto read = [&](const at::Tensor& tensor, int64_t n) { return by_length(tensor, layout, n); };
                      const Operands operands = with(dense(read(q, heads), read(k, key_heads), read(v, key_heads)), slopes, mask, keep);
                      const at::Tensor lse = saved_lse(largest, sum, {operands.count(), heads, operands.q.size(1)},
                                                       operands.q.scalar_type());
                      const Gradients made = backward(operands, scoring, read(g, heads), read(out, heads), lse);
                      write(gq, gk, gv, {in_layout(made.q, layout), in_layout(made.k, layout), in_layout(made.v, layout)});
                  });
}

diopiError_t diopiCustomizedFlashAttentionVarLenBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_q, diopiTensorHandle_t grad_k,
                                                         diopiTensorHandle_t grad_v, diopiConstTensorHandle_t grad_output,
                                                         diopiConstTensorHandle_t q, diopiConstTensorHandle_t k, diopiConstTensorHandle_t v,
                                                         diopiSize_t cum_seq_q, diopiSize_t cum_seq_kv,
                                                         diopiConstTensorHandle_t alibi_slopes,
                                                         diopiConstTensorHandle_t attention_out, diopiConstTensorHandle_t attention_mask,
                                                         diopiConstTensorHandle_t dropout_mask, diopiConstTensorHandle_t softmax_max,
                                                         diopiConstTensorHandle_t softmax_sum, diopiConstTensorHandle_t softmax_out,
                                                         int32_t max_seqlen_q, int32_t max_seqlen_kv, float p_dropout, float softmax_scale,
                                                         bool is_causal, int32_t window_size_left, int32_t window_size_right) {
    const Scoring scoring{softmax_scale, is_causal, window_size_left, window_size_right, p_dropout};
    return LAUNCH(ctx, __func__,
                  [scoring, gq = optional_view(grad_q), gk = optional_view(grad_k), gv = optional_view(grad_v), g = view(grad_output),
                   q = view(q), k = view(k), v = view(v), ends_q = dims(cum_seq_q), ends_k = dims(cum_seq_kv),
                   slopes = optional_view(alibi_slopes),
                   out = view(attention_out), mask = view_or_undefined(attention_mask), keep = keep_given(dropout_mask, p_dropout),
                   largest = view(softmax_max), sum = view(softmax_sum), max_q = int64_t(max_seqlen_q), max_k = int64_t(max_seqlen_kv)] {
                      check_operands(q, k, v, 3);
                      Spans spans = spans_of(from_ends(ends_q), from_ends(ends_k), q, k, max_q, max_k);
                      const Operands operands = with(packed(q, k, v, std::move(spans)), slopes, mask, keep);
                      const at::Tensor lse = saved_lse(largest, sum, {q.size(0), q.size(1)}, operands.q.scalar_type());  // [total, heads]
                      write(gq, gk, gv, backward(operands, scoring, g, out,
                                                 [&](int64_t b) { return operands.of_queries(lse, b).transpose(0, 1); }));
                  });
}
