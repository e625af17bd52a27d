#include "activation.h"

#include "lanes.h"
#include "parallel.h"

namespace dlinfer::DLINFER_CPU_CAPABILITY {
namespace {

constexpr int64_t PIECE = 1024;  // elements that are not divided among threads

/// x / (1 + exp(-x)), without an exponential that could be infinite.
inline V silu(V x) {
    const V power = exponential(bits_as<V>(bits_as<VI>(x) | INT32_MIN));
    return x * (x < 0.0f ? power : splat(1.0f)) / (power + 1.0f);
}

template <typename Element, typename Result>
void gated(const Element* gate, const Element* up, Result* result, int64_t size) {
    in_vectors(size, [&](int64_t i, int64_t count) INLINED {
        store_upto(silu(load_upto(gate + i, count)) * load_upto(up + i, count), result + i, count);
    });
}

template <typename Element, typename Result>
void gated_blocks(const GatedBlocks& given) {
    const auto* input = static_cast<const Element*>(given.input);
    auto* result = static_cast<Result*>(given.result);
    const int64_t pieces = (given.size + PIECE - 1) / PIECE;
    parallel(given.blocks * pieces, 16, [&](int64_t begin, int64_t end) {
        for (int64_t p = begin; p < end; p++) {
            const int64_t block = p / pieces, start = p % pieces * PIECE;
            const int64_t count = given.size - start < PIECE ? given.size - start : PIECE;
            const Element* gate = input + block * 2 * given.size + start;
            gated(gate, gate + given.size, result + block * given.size + start, count);
        }
    });
}

}  // namespace

void silu_and_mul(const GatedBlocks& given) {
    if (given.dtype == Dtype::bf16) return gated_blocks<Bfloat16, Bfloat16>(given);
    if (given.dtype == Dtype::f16) return gated_blocks<Half, Half>(given);
    if (given.result_dtype == Dtype::f32) gated_blocks<float, float>(given);
    if (given.result_dtype == Dtype::bf16) gated_blocks<float, Bfloat16>(given);
    if (given.result_dtype == Dtype::f16) gated_blocks<float, Half>(given);
}

}  // namespace dlinfer::DLINFER_CPU_CAPABILITY
