// One tile of a product: some rows of x with some rows of weights, both contiguous along what is summed.
#pragma once
#include <utility>

#include "vector.h"

// Sums stay in registers only where everything that touches them is one function, and where the compiler knows every index of
// an array of vectors from the start: no loops over them, but `each`.
#define INLINE [[gnu::always_inline]] static inline
#define INLINED __attribute__((always_inline))

namespace dlinfer::DLINFER_LEVEL {

template <typename Body, int... I>
INLINE void each_of(const Body& body, std::integer_sequence<int, I...>) {
    (body(std::integral_constant<int, I>{}), ...);
}
/// body(0), body(1), ... body(COUNT - 1), written out.
template <int COUNT, typename Body>
INLINE void each(const Body& body) {
    each_of(body, std::make_integer_sequence<int, COUNT>{});
}

// How many sums of sixteen lanes the registers of the level hold, beside what is read; and how many rows of x take part.
#if defined(__AVX512F__)
constexpr int SUMS = 16, TILE_ROWS = 8;
#elif defined(__AVX2__)
constexpr int SUMS = 4, TILE_ROWS = 2;
#else
constexpr int SUMS = 2, TILE_ROWS = 1;
#endif

/// Rows of weights beside `rows` rows of x. One row of x alone reads several streams at a time.
constexpr int tile_columns(int rows) { return rows == 1 ? (SUMS < 8 ? SUMS : 8) : SUMS / rows; }

/// Read once: the compiler would rather read from memory in every product.
INLINE void keep([[maybe_unused]] F& value) {
#if defined(__AVX512F__)
    __asm__("" : "+v"(value));
#endif
}

/// acc[r][c] += x[r, k] * weights(c, k) for sixteen k at a time; `weights(c, k, count)` gives what count < 16 asks for.
template <int ROWS, int COLUMNS, typename Weights>
INLINE void add_products(F (&acc)[ROWS][COLUMNS], const float* x, int64_t x_stride, int64_t begin, int64_t end,
                         const Weights& weights) {
    int64_t k = begin;
    for (; k + WIDTH <= end; k += WIDTH) {
        F weight[COLUMNS];
        each<COLUMNS>([&](auto c) INLINED { weight[c] = weights(c, k); });
        each<ROWS>([&](auto r) INLINED {
            F value = load(x + r * x_stride + k);
            keep(value);
            each<COLUMNS>([&](auto c) INLINED { acc[r][c] += value * weight[c]; });
        });
    }
    if (k < end) {
        F weight[COLUMNS];
        each<COLUMNS>([&](auto c) INLINED { weight[c] = weights(c, k, end - k); });
        each<ROWS>([&](auto r) INLINED {
            const F value = load_some(x + r * x_stride + k, end - k);
            each<COLUMNS>([&](auto c) INLINED { acc[r][c] += value * weight[c]; });
        });
    }
}

// ---- sixteen sums of sixteen lanes, at once: the same tree of additions for each ----

/// Lanes j and j + STEP of every 2 * STEP are added; a's results come first, then b's.
template <int STEP, typename Vector>
INLINE Vector halved(Vector a, Vector b) {
    constexpr auto from = [](int i) { return i / STEP * 2 * STEP + i % STEP; };
    const I low = {from(0), from(1), from(2),  from(3),  from(4),  from(5),  from(6),  from(7),
                   from(8), from(9), from(10), from(11), from(12), from(13), from(14), from(15)};
    return __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, low + STEP);
}

/// Lane i of the result is the sum of all lanes of vector i, for i < COUNT.
template <typename Vector, int COUNT>
INLINE Vector sums_of(const Vector (&vectors)[COUNT]) {
    static_assert(COUNT <= WIDTH);
    Vector eight[8] = {}, four[4] = {}, two[2] = {};
    each<(COUNT + 1) / 2>([&](auto i) INLINED {
        if constexpr (2 * i + 1 < COUNT)
            eight[i] = halved<8>(vectors[2 * i], vectors[2 * i + 1]);
        else
            eight[i] = halved<8>(vectors[2 * i], vectors[2 * i]);
    });
    each<(COUNT + 3) / 4>([&](auto i) INLINED { four[i] = halved<4>(eight[2 * i], eight[2 * i + 1]); });
    each<(COUNT + 7) / 8>([&](auto i) INLINED { two[i] = halved<2>(four[2 * i], four[2 * i + 1]); });
    return halved<1>(two[0], two[1]);
}

}  // namespace dlinfer::DLINFER_LEVEL
