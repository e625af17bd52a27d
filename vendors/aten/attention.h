// Attention of one sequence, and what the attention operators share: checks, precision, dropout.
//
// A sequence is three contiguous tensors of the accumulation dtype (float32, float64 for float64): q [queries, heads, width], k and v
// [keys, key heads, width]. Query i stands opposite key i + keys - queries; what it sees is counted from there.
#pragma once
#include <ATen/core/Tensor.h>
#include <diopi/functions_ext.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "kernel.h"
#include "results.h"

namespace dipu_vendor {

using Maybes = std::optional<at::Tensor>;

// How scores come about, the same for all sequences of a call.
struct Scoring {
    double scale = 1;
    bool causal = false;
    int64_t left = -1, right = -1;  // keys seen before and behind the opposite one; negative: all
    double dropout = 0;
};

struct Sequence {
    at::Tensor q, k, v;
    at::Tensor slopes;  // undefined, or [heads] of the accumulation dtype
    at::Tensor mask;    // undefined, or bool [heads, queries, keys] of any strides: true hides
    at::Tensor keep;    // undefined, or bool [heads, queries, keys] of any strides: what dropout keeps
};

struct Attended {
    at::Tensor out;           // [queries, heads, width]
    at::Tensor largest, sum;  // [heads, queries]: of the scores, of exp(score - largest); -inf and 0 where no key is seen
    at::Tensor lse() const;   // log(sum) + largest
};
// The chip's own.
Attended attend(const Sequence& sequence, const Scoring& scoring);

struct Gradients {
    at::Tensor q, k, v;
};

// All sequences of a dense call by a fused kernel of the chip's, which writes the output and the logarithms [batch, heads, queries]; false if it has
// none for these operands [batch, length, heads, width].
bool attend_fused(at::Tensor& out, const Maybes& lse, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Maybes& slopes,
                  const Scoring& scoring);
// The same for the gradients, of what `attend_fused` saved.
std::optional<Gradients> attend_fused_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                               const Maybes& slopes, const at::Tensor& out, const at::Tensor& lse, const Scoring& scoring);
// `out` and `lse` [heads, queries] are what the forward saved, of the accumulation dtype.
Gradients attend_backward(const Sequence& sequence, const Scoring& scoring, const at::Tensor& grad, const at::Tensor& out,
                          const at::Tensor& lse);

// ---- shared by the operators ----

// float64 for float64, float32 for the other floating dtypes; others are an error.
at::ScalarType accumulation(const at::Tensor& tensor);
// The same values, contiguous, of the accumulation dtype.
at::Tensor accumulated(const at::Tensor& tensor);
// The numbers of a list of integers with `dim` 1.
std::vector<int64_t> integers(const at::Tensor& tensor, const char* name);

// q, k and v of one dtype whose heads and widths fit; `rank` 4 (batch first) or 3 (packed).
void check_operands(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t rank);
void check_scoring(const Scoring& scoring);
// The slopes of one sequence of `slopes` [heads] or [batch, heads]; undefined if there are none.
at::Tensor slopes_of(const std::optional<at::Tensor>& slopes, int64_t batch, int64_t heads, const at::Tensor& like, int64_t batches);

// Where the sequences of packed tensors begin and end.
struct Spans {
    std::vector<int64_t> q, k;
    int64_t count() const { return static_cast<int64_t>(q.size()) - 1; }
    int64_t queries(int64_t b) const { return q[b + 1] - q[b]; }
    int64_t keys(int64_t b) const { return k[b + 1] - k[b]; }
};
// Checks that the spans rise within the tensors, and that no sequence is longer than the maxima.
Spans spans_of(std::vector<int64_t> cumulative_q, std::vector<int64_t> cumulative_k, const at::Tensor& q, const at::Tensor& k,
               int64_t longest_q, int64_t longest_k);

// The ends of sequences as cumulative lengths; a leading 0 is an empty sequence and changes nothing.
std::vector<int64_t> from_ends(const Dims& ends);

// What dropout keeps, drawn from the caller's generator; undefined if nothing is dropped. `advance`: the generator moves on.
at::Tensor drawn_keep(diopiContextHandle_t ctx, diopiGeneratorHandle_t generator, double dropout, at::IntArrayRef sizes, bool advance);

// The sequences of one call, dense [batch, length, heads, width] or packed [total, heads, width].
struct Operands {
    at::Tensor q, k, v;  // contiguous, of the accumulation dtype
    std::optional<Spans> spans;
    std::optional<at::Tensor> slopes;
    at::Tensor mask;  // undefined, or [queries, keys] or [batch or 1, heads or 1, queries, keys]: not 0 hides
    at::Tensor keep;  // undefined, or bool [batch, heads, queries, keys]

    int64_t count() const { return spans ? spans->count() : q.size(0); }
    int64_t heads() const { return q.size(q.dim() - 2); }
    int64_t queries(int64_t b) const { return spans ? spans->queries(b) : q.size(1); }
    int64_t keys(int64_t b) const { return spans ? spans->keys(b) : k.size(1); }
    // The part of a tensor like q, or like k, that belongs to one sequence.
    at::Tensor of_queries(const at::Tensor& whole, int64_t b) const;
    at::Tensor of_keys(const at::Tensor& whole, int64_t b) const;
    Sequence sequence(int64_t b) const;
    at::Tensor empty_out() const;  // zeros, like q with the width of v
};
Operands dense(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
Operands packed(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Spans spans);
Operands with(Operands operands, const Maybes& slopes, const at::Tensor& mask, const at::Tensor& keep);

// Arguments of `run` that are no C arguments.
struct Kept {
    at::Tensor tensor;
};
inline Kept argument(Kept kept) { return kept; }
inline Scoring argument(Scoring scoring) { return scoring; }

// Draws now, because a generator's states must advance in the order of the calls, whatever the streams do.
template <class Sizes>
diopiError_t draw_now(diopiContextHandle_t ctx, const char* name, diopiGeneratorHandle_t generator, double dropout, bool advance,
                      Kept& kept, Sizes sizes) {
    if (dropout == 0) return diopiSuccess;
    return guarded(name, [&] {
        kept.tensor = drawn_keep(ctx, generator, dropout, sizes(), advance);
    });
}
inline Dims dense_sizes(diopiConstTensorHandle_t q, diopiConstTensorHandle_t k) {
    const at::Tensor queries = view(q), keys = view(k);
    return {queries.size(0), queries.size(2), queries.size(1), keys.size(1)};
}
inline Dims packed_sizes(diopiConstTensorHandle_t q, diopiConstTensorHandle_t k, int64_t count, int64_t longest_q, int64_t longest_k) {
    const at::Tensor queries = view(q), keys = view(k);
    return {count, queries.size(1), std::min(longest_q, queries.size(0)), std::min(longest_k, keys.size(0))};
}

// The four layouts of the customized functions.
at::Tensor by_length(const at::Tensor& tensor, const std::string& layout, int64_t heads);   // -> [batch, length, heads, width]
at::Tensor in_layout(const at::Tensor& dense, const std::string& layout);                   // and back
int64_t key_heads_of(const at::Tensor& q, const at::Tensor& k, const std::string& layout, int64_t heads);

// Maxima and sums are saved eight times each, as [..., 8].
constexpr int64_t kSavedWidth = 8;

}  // namespace dipu_vendor
