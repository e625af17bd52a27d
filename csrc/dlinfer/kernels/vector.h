// Vectors of 16 numbers, with the compiler's vector types: one register at avx512, two at avx2, four without either.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

// For every function that takes or gives an F. Where it is wider than the capability's registers it is handed over in memory, and the
// compiler (GCC 12) does not align that memory as the called function expects it.
#define INLINE [[gnu::always_inline]] static inline
#define INLINED __attribute__((always_inline))  // the same for a lambda

namespace dlinfer::DLINFER_CPU_CAPABILITY {

constexpr int64_t WIDTH = 16;
typedef float F __attribute__((vector_size(64)));
// In memory at any address, beside numbers of any type. Not memcpy: GCC 12 copies that through the stack.
typedef float FLoose __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t I __attribute__((vector_size(64)));
typedef uint32_t U __attribute__((vector_size(64)));
typedef uint16_t U16 __attribute__((vector_size(32)));
typedef int8_t I8 __attribute__((vector_size(16)));

/// Numbers of these types are stored; all arithmetic is in float.
struct Bfloat16 {
    uint16_t bits;
};
struct Half {
    uint16_t bits;
};

template <typename To, typename From>
INLINE To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

template <typename Vector, typename Element>
INLINE Vector read(const Element* from) {
    Vector vector;
    std::memcpy(&vector, from, sizeof vector);
    return vector;
}

/// Minus a zero, not plus: that is the number itself, also for -0, so nothing is computed.
INLINE F fill(float value) { return value - F{}; }

// ---- one number ----

INLINE float widen(float value) { return value; }
INLINE float widen(Bfloat16 value) { return bits_as<float>(static_cast<uint32_t>(value.bits) << 16); }
INLINE float widen(Half value) {
#if defined(__F16C__)
    return _cvtsh_ss(value.bits);
#else
    const uint32_t sign = (value.bits & 0x8000u) << 16, rest = value.bits & 0x7fffu;
    if (rest >= 0x7c00u) return bits_as<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);  // infinity, NaN
    // The exponent is rebiased by a multiplication, which also makes normal numbers of subnormal ones.
    return bits_as<float>(sign | bits_as<uint32_t>(bits_as<float>(rest << 13) * 0x1p112f));
#endif
}

INLINE void narrow(float value, float* to) { *to = value; }
INLINE void narrow(float value, Bfloat16* to) {
    const uint32_t bits = bits_as<uint32_t>(value);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    to->bits = nan ? 0x7fc0u : static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
INLINE void narrow(float value, Half* to) {
#if defined(__F16C__)
    to->bits = _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
#else
    const uint32_t bits = bits_as<uint32_t>(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) {
        to->bits = static_cast<uint16_t>(sign | 0x7e00u);
    } else if (rest >= 0x477ff000u) {  // rounds to more than the largest half
        to->bits = static_cast<uint16_t>(sign | 0x7c00u);
    } else if (rest < 0x38800000u) {  // subnormal: adding 0.5 makes the addition round to the last place of a half
        const float rounded = bits_as<float>(rest) + 0.5f;
        to->bits = static_cast<uint16_t>(sign | (bits_as<uint32_t>(rounded) - 0x3f000000u));
    } else {
        to->bits = static_cast<uint16_t>(sign | (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13);
    }
#endif
}

// ---- sixteen numbers ----

INLINE F load(const float* from) { return *reinterpret_cast<const FLoose*>(from); }
INLINE F load(const Bfloat16* from) {
    return bits_as<F>(__builtin_convertvector(read<U16>(from), U) << 16);
}
INLINE F load(const Half* from) {
#if defined(__AVX512F__)
    return bits_as<F>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#else
    F value;
    for (int i = 0; i < WIDTH; i++) value[i] = widen(from[i]);
    return value;
#endif
}
INLINE F load(const int8_t* from) {
#if defined(__AVX512F__)  // the compiler would move the bytes one by one
    return bits_as<F>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(read<__m128i>(from))));
#else
    return __builtin_convertvector(__builtin_convertvector(read<I8>(from), I), F);
#endif
}

INLINE void store(F value, float* to) { *reinterpret_cast<FLoose*>(to) = value; }
INLINE void store(F value, Bfloat16* to) {
    const U bits = bits_as<U>(value);
    const U rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    const U nan = bits_as<U>(value != value);
    const U16 result = __builtin_convertvector((rounded & ~nan) | (nan & 0x7fc0u), U16);
    std::memcpy(to, &result, sizeof result);
}
INLINE void store(F value, Half* to) {
#if defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(bits_as<__m512>(value), _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < WIDTH; i++) narrow(value[i], to + i);
#endif
}

/// The first `count` of sixteen numbers, the rest 0; nothing behind them is read.
template <typename Element>
INLINE F load_some(const Element* from, int64_t count) {
    Element copy[WIDTH] = {};
    std::memcpy(copy, from, sizeof(Element) * static_cast<size_t>(count));
    return load(copy);
}
template <typename Element>
INLINE void store_some(F value, Element* to, int64_t count) {
    Element copy[WIDTH];
    store(value, copy);
    std::memcpy(to, copy, sizeof(Element) * static_cast<size_t>(count));
}

INLINE float sum(F value) {
    float total = 0;
    for (int step = WIDTH / 2; step; step /= 2)
        for (int i = 0; i < step; i++) value[i] += value[i + step];
    total = value[0];
    return total;
}
INLINE F larger(F a, F b) { return a > b ? a : b; }

}  // namespace dlinfer::DLINFER_CPU_CAPABILITY
