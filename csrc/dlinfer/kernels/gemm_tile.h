// One tile of a product: some rows of x with some rows of weights, both contiguous along what is summed.
#pragma once
#include <utility>

#include "lanes.h"

// Sums stay in registers only where everything that touches them is one function (INLINE), and where the compiler knows every
// index of an array of vectors from the start: no loops over them, but `each`.

namespace dlinfer::DLINFER_CPU_CAPABILITY {

template <typename Body, int... I>
INLINE void each_of(const Body& body, std::integer_sequence<int, I...>) {
    (body(std::integral_constant<int, I>{}), ...);
}
/// body(0), body(1), ... body(COUNT - 1), written out.
template <int COUNT, typename Body>
INLINE void each(const Body& body) {
    each_of(body, std::make_integer_sequence<int, COUNT>{});
}

// How many vectors of sums the registers of the capability hold, beside what is read; and how many rows of x take part.
#if defined(__AVX512F__)
constexpr int SUMS = 16, TILE_ROWS = 8;
#else
constexpr int SUMS = 8, TILE_ROWS = 4;
#endif

/// Rows of weights beside `rows` rows of x. One row of x alone reads several streams at a time.
constexpr int tile_columns(int rows) { return rows == 1 ? 8 : SUMS / rows; }

/// Read once: the compiler would rather read from memory in every product.
INLINE void keep([[maybe_unused]] V& value) {
#if defined(__AVX512F__)
    __asm__("" : "+v"(value));
#endif
}

/// acc[r][c] += x[r, k] * weights(c, k) for a vector of k at a time; `weights(c, k, count)` gives fewer of them.
template <int ROWS, int COLUMNS, typename Weights>
INLINE void add_products(V (&acc)[ROWS][COLUMNS], const float* x, int64_t x_stride, int64_t begin, int64_t end,
                         const Weights& weights) {
    int64_t k = begin;
    for (; k + LANES <= end; k += LANES) {
        V weight[COLUMNS];
        each<COLUMNS>([&](auto c) INLINED { weight[c] = weights(c, k); });
        each<ROWS>([&](auto r) INLINED {
            V value = load_lanes(x + r * x_stride + k);
            keep(value);
            each<COLUMNS>([&](auto c) INLINED { acc[r][c] += value * weight[c]; });
        });
    }
    if (k < end) {
        V weight[COLUMNS];
        each<COLUMNS>([&](auto c) INLINED { weight[c] = weights(c, k, end - k); });
        each<ROWS>([&](auto r) INLINED {
            const V value = load_some_lanes(x + r * x_stride + k, end - k);
            each<COLUMNS>([&](auto c) INLINED { acc[r][c] += value * weight[c]; });
        });
    }
}

// ---- sums over the lanes of several vectors, at once: the same tree of additions for each ----

template <int STEP, typename Vector, int... J>
INLINE Vector halved_of(Vector a, Vector b, std::integer_sequence<int, J...>) {
    const VI low = {J / STEP * 2 * STEP + J % STEP...};
    return __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, low + STEP);
}
/// Lanes j and j + STEP of every 2 * STEP are added; a's results come first, then b's.
template <int STEP, typename Vector>
INLINE Vector halved(Vector a, Vector b) {
    return halved_of<STEP>(a, b, std::make_integer_sequence<int, LANES>{});
}

/// to[i] is the sum of all lanes of vector i. `to` has room for whole vectors.
template <int STEP = LANES / 2, typename Vector, int COUNT, typename Number>
INLINE void sum_lanes(const Vector (&vectors)[COUNT], Number* to) {
    Vector half[(COUNT + 1) / 2];
    each<(COUNT + 1) / 2>([&](auto i) INLINED { half[i] = halved<STEP>(vectors[2 * i], vectors[2 * i + 1 < COUNT ? 2 * i + 1 : 2 * i]); });
    if constexpr (STEP > 1)
        sum_lanes<STEP / 2>(half, to);
    else
        std::memcpy(to, half, sizeof half);
}

}  // namespace dlinfer::DLINFER_CPU_CAPABILITY
