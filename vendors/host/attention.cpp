// Attention of one sequence: forward a running softmax over blocks of keys, so that no matrix of scores is kept; backward the weights are
// recomputed row by row from the saved logarithms of the softmax's divisors.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "attention.h"
#include "attention_rows.h"

namespace dipu_vendor {
namespace {

constexpr int64_t kBlock = 32;

// One row: the running maximum, sum and weighted values.
template <class T>
class Row {
   public:
    Row(const Rows<T>& rows, int64_t head, int64_t query) : rows_(rows), head_(head), query_(query), values_(rows.value_width, T(0)) {}

    void take(int64_t first, int64_t end) {
        std::array<T, kBlock> scores;
        std::array<int64_t, kBlock> seen;
        int64_t count = 0;
        T largest = largest_;
        for (int64_t key = first; key < end; ++key) {
            if (!rows_.sees(head_, query_, key)) continue;
            const T score = rows_.score(head_, query_, key);
            scores[count] = score;
            seen[count++] = key;
            largest = std::max(largest, score);
        }
        if (count == 0) return;
        if (largest > largest_) shrink(largest);
        for (int64_t i = 0; i < count; ++i) add(seen[i], std::exp(scores[i] - largest_));
    }

    void store(T* out, T* largest, T* sum) const {
        *largest = largest_;
        *sum = sum_;
        const T share = empty_ ? T(0) : rows_.kept_share() / sum_;
        for (int64_t d = 0; d < rows_.value_width; ++d) out[d] = empty_ ? T(0) : values_[d] * share;
    }

   private:
    // A larger maximum: what was added so far weighs less.
    void shrink(T largest) {
        const T factor = empty_ ? T(0) : std::exp(largest_ - largest);
        sum_ *= factor;
        for (T& value : values_) value *= factor;
        largest_ = largest;
    }
    void add(int64_t key, T weight) {
        empty_ = false;
        sum_ += weight;
        if (!rows_.keeps(head_, query_, key)) return;
        const T* v = rows_.value(head_, key);
        for (int64_t d = 0; d < rows_.value_width; ++d) values_[d] += weight * v[d];
    }

    const Rows<T>& rows_;
    int64_t head_, query_;
    T largest_ = -std::numeric_limits<T>::infinity(), sum_ = 0;
    bool empty_ = true;
    std::vector<T> values_;
};

template <class T>
Attended attended(const Sequence& sequence, const Scoring& scoring) {
    const Rows<T> rows(sequence, scoring);
    const auto options = sequence.q.options();
    Attended made{at::empty({rows.queries, rows.heads, rows.value_width}, options), at::empty({rows.heads, rows.queries}, options),
                  at::empty({rows.heads, rows.queries}, options)};
    T *out = made.out.data_ptr<T>(), *largest = made.largest.data_ptr<T>(), *sum = made.sum.data_ptr<T>();
    for (int64_t head = 0; head < rows.heads; ++head) {
        for (int64_t query = 0; query < rows.queries; ++query) {
            Row<T> row(rows, head, query);
            const auto [first, last] = rows.reach(query);
            for (int64_t key = first; key < last; key += kBlock) row.take(key, std::min(key + kBlock, last));
            const int64_t at = head * rows.queries + query;
            row.store(out + (query * rows.heads + head) * rows.value_width, largest + at, sum + at);
        }
    }
    return made;
}

}  // namespace

Attended attend(const Sequence& sequence, const Scoring& scoring) {
    return sequence.q.scalar_type() == at::kDouble ? attended<double>(sequence, scoring) : attended<float>(sequence, scoring);
}

namespace {

template <class T>
Gradients gradients(const Sequence& sequence, const Scoring& scoring, const at::Tensor& grad, const at::Tensor& out,
                    const at::Tensor& lse) {
    const Rows<T> rows(sequence, scoring);
    Gradients made{at::zeros_like(sequence.q), at::zeros_like(sequence.k), at::zeros_like(sequence.v)};
    T *to_q = made.q.data_ptr<T>(), *to_k = made.k.data_ptr<T>(), *to_v = made.v.data_ptr<T>();
    const T *grads = grad.const_data_ptr<T>(), *outs = out.const_data_ptr<T>(), *logarithms = lse.const_data_ptr<T>();
    const int64_t width = rows.width, value_width = rows.value_width;
    for (int64_t head = 0; head < rows.heads; ++head) {
        for (int64_t query = 0; query < rows.queries; ++query) {
            const int64_t row = query * rows.heads + head;
            const T* g = grads + row * value_width;
            const T share = rows.dot(g, outs + row * value_width, value_width);
            T* gq = to_q + row * width;
            const auto [first, end] = rows.reach(query);
            for (int64_t key = first; key < end; ++key) {
                if (!rows.sees(head, query, key)) continue;
                const T weight = std::exp(rows.score(head, query, key) - logarithms[head * rows.queries + query]);
                const T kept = rows.keeps(head, query, key) ? rows.kept_share() : T(0);
                const T slope = weight * (rows.dot(g, rows.value(head, key), value_width) * kept - share) * rows.scale();
                const int64_t column = key * rows.key_heads + rows.shared(head);
                const T *q = rows.query(head, query), *k = rows.key(head, key);
                T *gk = to_k + column * width, *gv = to_v + column * value_width;
                for (int64_t d = 0; d < width; ++d) gq[d] += slope * k[d], gk[d] += slope * q[d];
                for (int64_t d = 0; d < value_width; ++d) gv[d] += weight * kept * g[d];
            }
        }
    }
    return made;
}

}  // namespace

Gradients attend_backward(const Sequence& sequence, const Scoring& scoring, const at::Tensor& grad, const at::Tensor& out,
                          const at::Tensor& lse) {
    return sequence.q.scalar_type() == at::kDouble ? gradients<double>(sequence, scoring, grad, out, lse)
                                                   : gradients<float>(sequence, scoring, grad, out, lse);
}

bool attend_fused(at::Tensor&, const Maybes&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const Maybes&, const Scoring&) {
    return false;
}

std::optional<Gradients> attend_fused_backward(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const Maybes&,
                                               const at::Tensor&, const at::Tensor&, const Scoring&) {
    return std::nullopt;
}

}  // namespace dipu_vendor
