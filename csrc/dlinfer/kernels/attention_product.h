// Products of small matrices whose results stay in registers.
#pragma once
#include "attention_rows.h"

namespace dlinfer::DLINFER_CPU_CAPABILITY {

/// A tile of results: ROWS rows of PANEL vectors. With what is loaded beside them they fill the registers of the capability.
constexpr int ROWS = 6;
#if defined(__AVX512F__)
constexpr int PANEL = 4;
#else
constexpr int PANEL = 2;
#endif

// The loops over depth are in functions of their own: inside larger ones the compiler runs out of registers. Loops over R and C are unrolled
// early, so that arrays of sums become registers.

/// Columns from `column` on of: result = result * factors + weights @ values. Weights are [R, TILE], values are rows.
template <int R, int C>
__attribute__((noinline)) static void grow_panel(const float* weights, const RowPointers& values, int64_t depth, const float* factors,
                                                 int64_t column, float* result, int64_t stride) {
    V sums[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) sums[r][c] = load_lanes(result + r * stride + column + c * LANES) * factors[r];
    for (int64_t k = 0; k < depth; k++) {
        const float* from = values.at[k] + column;
        V row[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) row[c] = load_lanes(from + c * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const V weight = splat(weights[r * TILE + k]);
#pragma GCC unroll 8
            for (int c = 0; c < C; c++) sums[r][c] += weight * row[c];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) store_lanes(sums[r][c], result + r * stride + column + c * LANES);
}

/// Weights [rows, TILE], of which `depth` columns count, times values are added to the results [rows, stride]; `stride` is whole vectors.
template <int R = ROWS>
static inline void grow(int64_t rows, const float* weights, const RowPointers& values, int64_t depth, const float* factors, float* result,
                        int64_t stride) {
    if (rows == R) {
        int64_t column = 0;
        for (; column + PANEL * LANES <= stride; column += PANEL * LANES) grow_panel<R, PANEL>(weights, values, depth, factors, column, result, stride);
        for (; column < stride; column += LANES) grow_panel<R, 1>(weights, values, depth, factors, column, result, stride);
    } else if constexpr (R > 1) {
        grow<R - 1>(rows, weights, values, depth, factors, result, stride);
    }
}

/// Products of R queries and PANEL vectors of keys, into result [R, TILE]. Queries and keys are columns: [depth, R] and [depth, TILE].
template <int R>
__attribute__((noinline)) static void multiply_panel(const float* queries, int64_t depth, const float* keys, float* result) {
    V sums[R][PANEL] = {};
    for (int64_t k = 0; k < depth; k++) {
        V row[PANEL];
#pragma GCC unroll 8
        for (int c = 0; c < PANEL; c++) row[c] = load_lanes(keys + k * TILE + c * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const V query = splat(queries[k * R + r]);
#pragma GCC unroll 8
            for (int c = 0; c < PANEL; c++) sums[r][c] += query * row[c];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int c = 0; c < PANEL; c++) store_lanes(sums[r][c], result + r * TILE + c * LANES);
}

template <int R = ROWS>
static inline void multiply(int64_t rows, const float* queries, int64_t depth, const float* keys, float* result) {
    if (rows == R) {
        for (int64_t column = 0; column < TILE; column += PANEL * LANES) multiply_panel<R>(queries, depth, keys + column, result + column);
    } else if constexpr (R > 1) {
        multiply<R - 1>(rows, queries, depth, keys, result);
    }
}

/// Products of C vectors from column k on of R queries and LANES keys, not yet summed across lanes; the first ones, or added to others.
template <int R, int C, bool FIRST>
static inline void multiply_lanes(const float* queries, int64_t depth, const float* const* keys, int64_t k, V (&products)[R][LANES]) {
    V query[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) query[r][c] = load_lanes(queries + r * depth + k + c * LANES);
    for (int i = 0; i < LANES; i++) {
        const float* from = keys[i] + k;
        V key[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) key[c] = load_lanes(from + c * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            V sum = FIRST ? query[r][0] * key[0] : products[r][i] + query[r][0] * key[0];
#pragma GCC unroll 8
            for (int c = 1; c < C; c++) sum += query[r][c] * key[c];
            products[r][i] = sum;
        }
    }
}

/// Products of a few queries and keys in rows: nothing is moved, but sums go across lanes.
template <int R>
__attribute__((noinline)) static void multiply_row_block(const float* queries, int64_t depth, const RowPointers& keys, int64_t count, float* result) {
    for (int64_t first = 0; first < count; first += LANES) {
        V products[R][LANES];
        int64_t k = LANES;
        if (depth >= 4 * LANES) {
            multiply_lanes<R, 4, true>(queries, depth, keys.at + first, 0, products);
            for (k = 4 * LANES; k + 4 * LANES <= depth; k += 4 * LANES) multiply_lanes<R, 4, false>(queries, depth, keys.at + first, k, products);
        } else {
            multiply_lanes<R, 1, true>(queries, depth, keys.at + first, 0, products);
        }
        for (; k < depth; k += LANES) multiply_lanes<R, 1, false>(queries, depth, keys.at + first, k, products);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) store_lanes(sums(products[r]), result + r * TILE + first);
    }
}

template <int R = ROWS>
static inline void multiply_rows(int64_t rows, const float* queries, int64_t depth, const RowPointers& keys, int64_t count, float* result) {
    if (rows == R)
        multiply_row_block<R>(queries, depth, keys, count, result);
    else if constexpr (R > 1)
        multiply_rows<R - 1>(rows, queries, depth, keys, count, result);
}

/// Keys in rows become keys in columns [depth, TILE].
__attribute__((noinline)) static void turn_rows(const RowPointers& keys, int64_t count, int64_t depth, float* columns) {
    for (int64_t first = 0; first < count; first += LANES)
        for (int64_t k = 0; k < depth; k += LANES) {
            V block[LANES];
            for (int i = 0; i < LANES; i++) block[i] = load_lanes(keys.at[first + i] + k);
            transpose(block);
            for (int i = 0; i < LANES; i++) store_lanes(block[i], columns + (k + i) * TILE + first);
        }
}

}  // namespace dlinfer::DLINFER_CPU_CAPABILITY
