// Products of small matrices whose results stay in registers.
#pragma once
#include "attention_rows.h"

namespace dlinfer::DLINFER_LEVEL {

/// A tile of results: ROWS rows of PANEL vectors. With what is loaded beside them they fill the registers of the level.
constexpr int ROWS = 6;
#if defined(__AVX512F__)
constexpr int PANEL = 4;
#else
constexpr int PANEL = 2;
#endif

/// Rows of a matrix that lie one after the other.
struct Strided {
    const float* data;
    int64_t stride;
    const float* operator()(int64_t row) const { return data + row * stride; }
};

/// result[r][c] += sum over k of left[r][k] * right(k)[c], k below depth.
template <int R, int C, typename Right>
static inline void add_product(const float* left, int64_t left_stride, const Right& right, int64_t column, int64_t depth, V (&result)[R][C]) {
    for (int64_t k = 0; k < depth; k++) {
        const float* from = right(k) + column;
        V row[C];
        for (int c = 0; c < C; c++) row[c] = load_lanes(from + c * LANES);
        for (int r = 0; r < R; r++) {
            const V factor = splat(left[r * left_stride + k]);
            for (int c = 0; c < C; c++) result[r][c] += factor * row[c];
        }
    }
}

/// result = result * factors + left @ right, for `columns` columns from `column` on in panels of C vectors; returns where it stopped.
template <int R, int C, typename Right>
static inline int64_t grow_panels(const float* left, int64_t left_stride, const Right& right, int64_t depth, const float* factors, float* result,
                                  int64_t stride, int64_t column) {
    for (; column + C * LANES <= stride; column += C * LANES) {
        V sums[R][C];
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) sums[r][c] = load_lanes(result + r * stride + column + c * LANES) * factors[r];
        add_product<R, C>(left, left_stride, right, column, depth, sums);
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) store_lanes(sums[r][c], result + r * stride + column + c * LANES);
    }
    return column;
}

/// Weights [rows, depth] times values are added to the results [rows, stride]; `stride` is whole vectors.
template <int R = ROWS, typename Right>
static inline void grow(int64_t rows, const float* weights, int64_t weights_stride, const Right& right, int64_t depth, const float* factors,
                        float* result, int64_t stride) {
    if (rows == R) {
        const int64_t rest = grow_panels<R, PANEL>(weights, weights_stride, right, depth, factors, result, stride, 0);
        grow_panels<R, 1>(weights, weights_stride, right, depth, factors, result, stride, rest);
    } else if constexpr (R > 1) {
        grow<R - 1>(rows, weights, weights_stride, right, depth, factors, result, stride);
    }
}

/// Products of queries [rows, depth] and keys in columns [depth, TILE].
template <int R = ROWS>
static inline void multiply(int64_t rows, const float* queries, int64_t depth, const float* columns, float* result) {
    if (rows == R) {
        for (int64_t column = 0; column < TILE; column += PANEL * LANES) {
            V sums[R][PANEL] = {};
            add_product<R, PANEL>(queries, depth, Strided{columns, TILE}, column, depth, sums);
            for (int r = 0; r < R; r++)
                for (int c = 0; c < PANEL; c++) store_lanes(sums[r][c], result + r * TILE + column + c * LANES);
        }
    } else if constexpr (R > 1) {
        multiply<R - 1>(rows, queries, depth, columns, result);
    }
}

/// The same for a few queries, with keys in rows: nothing is moved, but sums go across lanes.
static inline void multiply_rows(int64_t rows, const float* queries, int64_t depth, const RowPointers& keys, int64_t count, float* result) {
    for (int64_t first = 0; first < count; first += LANES) {
        for (int64_t r = 0; r < rows; r++) {
            V products[LANES] = {};
            for (int64_t k = 0; k < depth; k += LANES) {
                const V query = load_lanes(queries + r * depth + k);
                for (int i = 0; i < LANES; i++) products[i] += query * load_lanes(keys.at[first + i] + k);
            }
            store_lanes(sums(products), result + r * TILE + first);
        }
    }
}

/// Keys in rows become keys in columns [depth, TILE].
static inline void turn_rows(const RowPointers& keys, int64_t count, int64_t depth, float* columns) {
    for (int64_t first = 0; first < count; first += LANES)
        for (int64_t k = 0; k < depth; k += LANES) {
            V block[LANES];
            for (int i = 0; i < LANES; i++) block[i] = load_lanes(keys.at[first + i] + k);
            transpose(block);
            for (int i = 0; i < LANES; i++) store_lanes(block[i], columns + (k + i) * TILE + first);
        }
}

}  // namespace dlinfer::DLINFER_LEVEL
