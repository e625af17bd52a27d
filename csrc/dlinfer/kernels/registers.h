// Vectors as wide as the capability's registers, for kernels that keep a tile of results in registers: V has LANES floats.
#pragma once
#include "vector.h"

namespace dlinfer::DLINFER_CPU_CAPABILITY {

#if defined(__AVX512F__)
constexpr int64_t LANES = 16;
#elif defined(__AVX2__)
constexpr int64_t LANES = 8;
#else
constexpr int64_t LANES = 4;
#endif
typedef float V __attribute__((vector_size(LANES * 4)));
// In memory at any address, beside numbers of any type. Not memcpy: GCC 12 copies that through the stack.
typedef float VLoose __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t VI __attribute__((vector_size(LANES * 4)));
typedef uint32_t VU __attribute__((vector_size(LANES * 4)));
typedef uint16_t VU16 __attribute__((vector_size(LANES * 2)));

static inline int64_t padded(int64_t size) { return (size + LANES - 1) / LANES * LANES; }

/// Minus a zero, not plus: that is the number itself, also for -0, so nothing is computed.
static inline V splat(float value) { return value - V{}; }
static inline V larger_lanes(V a, V b) { return a > b ? a : b; }

static inline V load_lanes(const float* from) { return *reinterpret_cast<const VLoose*>(from); }
static inline V load_lanes(const Bfloat16* from) { return bits_as<V>(__builtin_convertvector(read<VU16>(from), VU) << 16); }
static inline V load_lanes(const Half* from) {
#if defined(__AVX512F__)
    return load(from);
#elif defined(__AVX2__)
    return bits_as<V>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
    V value;
    for (int i = 0; i < LANES; i++) value[i] = widen(from[i]);
    return value;
#endif
}

static inline void store_lanes(V value, float* to) { *reinterpret_cast<VLoose*>(to) = value; }
static inline void store_lanes(V value, Bfloat16* to) {
    const VU bits = bits_as<VU>(value);
    const VU rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    const VU nan = bits_as<VU>(value != value);
    const VU16 result = __builtin_convertvector((rounded & ~nan) | (nan & 0x7fc0u), VU16);
    std::memcpy(to, &result, sizeof result);
}
static inline void store_lanes(V value, Half* to) {
#if defined(__AVX512F__)
    store(value, to);
#elif defined(__AVX2__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(bits_as<__m256>(value), _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < LANES; i++) narrow(value[i], to + i);
#endif
}

/// The numbers of a row as floats, filled up with zeros to whole vectors.
template <typename Element>
static inline void widen_row(const Element* from, int64_t size, float* to) {
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) store_lanes(load_lanes(from + i), to + i);
    for (; i < size; i++) to[i] = widen(from[i]);
    for (; i < padded(size); i++) to[i] = 0;
}
template <typename Element>
static inline void narrow_row(const float* from, int64_t size, float factor, Element* to) {
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) store_lanes(load_lanes(from + i) * factor, to + i);
    for (; i < size; i++) narrow(from[i] * factor, to + i);
}

// ---- across lanes ----

/// Lanes of two vectors, blocks of `BLOCK` lanes: of each pair of blocks the one that is `SECOND`, a's before b's.
/// {a0 a1 a2 a3}, {b0 b1 b2 b3}, BLOCK 1: {a0 b0 a2 b2} or {a1 b1 a3 b3}; BLOCK 2: {a0 a1 b0 b1} or {a2 a3 b2 b3}.
template <int BLOCK, bool SECOND>
static inline V pick_blocks(V a, V b) {
    VI order;
    for (int i = 0; i < LANES; i++) {
        const int of_b = i / BLOCK % 2;
        order[i] = (i - of_b * BLOCK) + (SECOND ? BLOCK : 0) + of_b * static_cast<int>(LANES);
    }
    return __builtin_shuffle(a, b, order);
}

/// Rows become columns.
template <int BLOCK = static_cast<int>(LANES) / 2>
static inline void transpose(V (&rows)[LANES]) {
    for (int i = 0; i < LANES; i++) {
        if (i & BLOCK) continue;
        const V a = rows[i], b = rows[i + BLOCK];
        rows[i] = pick_blocks<BLOCK, false>(a, b);
        rows[i + BLOCK] = pick_blocks<BLOCK, true>(a, b);
    }
    if constexpr (BLOCK > 1) transpose<BLOCK / 2>(rows);
}

/// Lane i of the result is the sum over the lanes of rows[i].
template <int BLOCK = static_cast<int>(LANES) / 2>
static inline V sums(V (&rows)[LANES]) {
    for (int i = 0; i < BLOCK; i++) {
        const V a = rows[i], b = rows[i + BLOCK];
        rows[i] = pick_blocks<BLOCK, false>(a, b) + pick_blocks<BLOCK, true>(a, b);
    }
    if constexpr (BLOCK > 1) return sums<BLOCK / 2>(rows);
    return rows[0];
}

template <int BLOCK = static_cast<int>(LANES) / 2>
static inline float largest(V value) {
    value = larger_lanes(pick_blocks<BLOCK, false>(value, value), pick_blocks<BLOCK, true>(value, value));
    if constexpr (BLOCK > 1) return largest<BLOCK / 2>(value);
    return value[0];
}

template <int BLOCK = static_cast<int>(LANES) / 2>
static inline float total(V value) {
    value = pick_blocks<BLOCK, false>(value, value) + pick_blocks<BLOCK, true>(value, value);
    if constexpr (BLOCK > 1) return total<BLOCK / 2>(value);
    return value[0];
}

// ---- functions ----

/// exp(x) = power * (1 + rest), the rest with small relative error, for x down to -87.
struct Exponential {
    V power, rest;
};
static inline Exponential split_exponential(V x) {
    // Adding 1.5 * 2^23 rounds to a whole number, which is then in the lowest bits.
    const V shifted = x * 1.44269504f + 12582912.0f;
    const V whole = shifted - 12582912.0f;
    // Unsigned: below the range, where nobody uses it, the sum is more than an int holds.
    const V power = bits_as<V>((bits_as<VU>(shifted) << 23) + 0x3f800000u);
    // ln 2 in two parts: the first has few bits, so that its product is exact.
    const V r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    V p = splat(0.0013814599f);
    p = p * r + 0.0083687166f;
    p = p * r + 0.041668389f;
    p = p * r + 0.16666521f;
    p = p * r + 0.49999994f;
    return {power, r * r * p + r};
}

/// exp(x) for x of at most 88; 0 below -87, NaN for NaN.
static inline V exponential(V x) {
    const Exponential e = split_exponential(x);
    const V result = e.rest * e.power + e.power;
    return x < -87.0f ? V{} : result;
}

/// tanh(x) with small relative error also near 0.
static inline V hyperbolic_tangent(V x) {
    const VI sign = bits_as<VI>(x) & INT32_MIN;
    V twice = bits_as<V>(bits_as<VI>(x) & INT32_MAX) * 2.0f;
    twice = twice > 40.0f ? splat(40.0f) : twice;  // NaN stays
    const Exponential e = split_exponential(twice);
    const V less_one = e.rest * e.power + (e.power - 1.0f);
    return bits_as<V>(bits_as<VI>(less_one / (less_one + 2.0f)) | sign);
}

}  // namespace dlinfer::DLINFER_CPU_CAPABILITY
