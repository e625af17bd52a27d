// What goes into a product of rows, and what comes out of it.
#pragma once
#include "gemm.h"
#include "lanes.h"
#include "scratch.h"

namespace dlinfer::DLINFER_CPU_CAPABILITY {

/// Rows of floats at the beginnings of cache lines: a vector that lies across two lines costs two reads.
struct AlignedRows {
    Scratch<float> scratch;
    const float* data;
    int64_t stride;

    explicit AlignedRows(const Product& given) : scratch(fits(given) ? 0 : given.rows * padded(given.in)) {
        data = scratch.data ? scratch.data : static_cast<const float*>(given.x);
        stride = scratch.data ? padded(given.in) : given.x_stride;
        if (!scratch.data) return;
        if (given.x_dtype == Dtype::f32) copy<float>(given);
        if (given.x_dtype == Dtype::bf16) copy<Bfloat16>(given);
        if (given.x_dtype == Dtype::f16) copy<Half>(given);
    }

private:
    static bool fits(const Product& given) {
        const auto address = reinterpret_cast<uintptr_t>(given.x) | static_cast<uintptr_t>(given.x_stride * 4);
        return given.x_dtype == Dtype::f32 && address % (4 * LANES) == 0;
    }

    template <typename Element>
    void copy(const Product& given) {
        for (int64_t r = 0; r < given.rows; r++)
            widen_row(static_cast<const Element*>(given.x) + r * given.x_stride, given.in, scratch.data + r * stride);
    }
};

/// Numbers of one row from `index` on, at most a vector of them.
INLINE void store_result(V value, void* result, Dtype dtype, int64_t index, int64_t count) {
    if (dtype == Dtype::f32) store_upto(value, static_cast<float*>(result) + index, count);
    if (dtype == Dtype::bf16) store_upto(value, static_cast<Bfloat16*>(result) + index, count);
    if (dtype == Dtype::f16) store_upto(value, static_cast<Half*>(result) + index, count);
}

/// Sums of one row and some columns from n on become results.
static inline void finish(const Product& given, int64_t row, int64_t n, int64_t count, const float* sums) {
    in_vectors(count, [&](int64_t i, int64_t part) INLINED {
        V value = load_upto(sums + i, part);
        if (given.scale) value *= load_upto(given.scale + n + i, part);
        if (given.bias) value += load_upto(given.bias + n + i, part);
        store_result(value, given.result, given.result_dtype, row * given.result_stride + n + i, part);
    });
}

}  // namespace dlinfer::DLINFER_CPU_CAPABILITY
