#include "moe.h"

#include "gemm_operands.h"
#include "parallel.h"

namespace dlinfer::DLINFER_CPU_CAPABILITY {
namespace {

/// The softmax of `size` numbers; behind them up to `padded(size)` may be written.
void softmax(float* row, int64_t size) {
    float most = row[0];
    for (int64_t i = 1; i < size; i++) most = row[i] > most ? row[i] : most;
    float all = 0;
    for (int64_t i = 0; i < padded(size); i += LANES) store_lanes(exponential(load_lanes(row + i) - most), row + i);
    for (int64_t i = 0; i < size; i++) all += row[i];
    for (int64_t i = 0; i < size; i++) row[i] /= all;
}

/// The index of the largest number that was not taken yet; like torch's topk, what is no number comes first.
int64_t largest_left(const float* row, const bool* taken, int64_t size) {
    int64_t best = -1;
    for (int64_t i = 0; i < size; i++) {
        if (taken[i]) continue;
        if (best < 0 || row[i] > row[best] || (row[i] != row[i] && row[best] == row[best])) best = i;
    }
    return best;
}

void choose(const Gate& gate, const float* row, bool* taken, float* weights, int64_t* ids) {
    const int64_t size = gate.experts / gate.groups, each = gate.topk / gate.groups;
    float all = 0;
    for (int64_t index = 0; index < gate.topk; index++) {
        const int64_t start = index / each * size;
        const int64_t best = start + largest_left(row + start, taken + start, size);
        taken[best] = true;
        ids[index] = best;
        weights[index] = row[best];
        all += row[best];
    }
    if (gate.renormalize)
        for (int64_t index = 0; index < gate.topk; index++) weights[index] /= all;
}

template <typename Element>
void choose_for_rows(const Gate& gate, int64_t begin, int64_t end) {
    Scratch<float> row(padded(gate.experts));
    Scratch<bool> taken(gate.experts);
    for (int64_t r = begin; r < end; r++) {
        widen_row(static_cast<const Element*>(gate.logits) + r * gate.experts, gate.experts, row.data);
        softmax(row.data, gate.experts);
        std::memset(taken.data, 0, static_cast<size_t>(gate.experts));
        choose(gate, row.data, taken.data, gate.weights + r * gate.topk, gate.ids + r * gate.topk);
    }
}

}  // namespace

void choose_experts(const Gate& gate) {
    parallel(gate.rows, 16, [&](int64_t begin, int64_t end) {
        if (gate.dtype == Dtype::f32) choose_for_rows<float>(gate, begin, end);
        if (gate.dtype == Dtype::bf16) choose_for_rows<Bfloat16>(gate, begin, end);
        if (gate.dtype == Dtype::f16) choose_for_rows<Half>(gate, begin, end);
    });
}

void add_shares(const Shares& given) {
    // An expert has a token once or more: a row of sums belongs to one thread by its columns.
    parallel(given.size, 1024, [&](int64_t begin, int64_t end) {
        for (int64_t i = 0; i < given.count; i++) {
            float* sums = given.sums + given.tokens[i] * given.size;
            const float* row = given.rows + i * given.size;
            const float share = given.shares[i];
            for (int64_t n = begin; n < end; n++) sums[n] += share * row[n];
        }
    });
}

void narrow_numbers(const float* from, int64_t count, Dtype dtype, void* to) {
    parallel(count, 16384, [&](int64_t begin, int64_t end) {
        in_vectors(end - begin, [&](int64_t i, int64_t part) INLINED {
            store_result(load_upto(from + begin + i, part), to, dtype, begin + i, part);
        });
    });
}

}  // namespace dlinfer::DLINFER_CPU_CAPABILITY
