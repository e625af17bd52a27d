// More about vectors of the capability's width: bytes, vectors that are not full, rounding.
#pragma once
#include "registers.h"

namespace dlinfer::DLINFER_CPU_CAPABILITY {

typedef int8_t V8 __attribute__((vector_size(LANES)));

INLINE V load_lanes(const int8_t* from) {
    // The compiler would move the bytes one by one.
#if defined(__AVX512F__)
    return bits_as<V>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))));
#elif defined(__AVX2__)
    return bits_as<V>(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)))));
#else
    return __builtin_convertvector(read<V8>(from), V);
#endif
}

/// The first `count` numbers, the rest 0; nothing behind them is read.
template <typename Element>
INLINE V load_some_lanes(const Element* from, int64_t count) {
    Element copy[LANES] = {};
    std::memcpy(copy, from, sizeof(Element) * static_cast<size_t>(count));
    return load_lanes(copy);
}
template <typename Element>
INLINE void store_some_lanes(V value, Element* to, int64_t count) {
    Element copy[LANES];
    store_lanes(value, copy);
    std::memcpy(to, copy, sizeof(Element) * static_cast<size_t>(count));
}

/// The same where `count` is mostly all of them.
template <typename Element>
INLINE V load_upto(const Element* from, int64_t count) {
    return count == LANES ? load_lanes(from) : load_some_lanes(from, count);
}
template <typename Element>
INLINE void store_upto(V value, Element* to, int64_t count) {
    count == LANES ? store_lanes(value, to) : store_some_lanes(value, to, count);
}

/// step(i, count) for as many elements as a vector has at a time; the last ones may be fewer.
template <typename Step>
INLINE void in_vectors(int64_t size, const Step& step) {
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) step(i, LANES);
    if (i < size) step(i, size - i);
}

/// Rounds halves to even, for numbers up to 2^22: at this size a float has no digits behind the point.
INLINE V rounded(V value) {
    constexpr float SHIFT = 12582912.0f;
    return (value + SHIFT) - SHIFT;
}

}  // namespace dlinfer::DLINFER_CPU_CAPABILITY
