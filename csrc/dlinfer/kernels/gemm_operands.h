// What goes into a product of rows, and what comes out of it.
#pragma once
#include "gemm.h"
#include "scratch.h"
#include "vector.h"

namespace dlinfer::DLINFER_LEVEL {

/// Rows of floats at the beginnings of cache lines: a vector that lies across two lines costs two reads.
struct AlignedRows {
    Scratch<float> scratch;
    const float* data;
    int64_t stride;

    explicit AlignedRows(const Product& given) : scratch(fits(given) ? 0 : given.rows * padded(given.in)) {
        data = scratch.data ? scratch.data : static_cast<const float*>(given.x);
        stride = scratch.data ? padded(given.in) : given.x_stride;
        if (!scratch.data) return;
        if (given.x_kind == Kind::f32) copy<float>(given);
        if (given.x_kind == Kind::bf16) copy<Bfloat16>(given);
        if (given.x_kind == Kind::f16) copy<Half>(given);
    }

private:
    static int64_t padded(int64_t size) { return (size + WIDTH - 1) / WIDTH * WIDTH; }
    static bool fits(const Product& given) {
        const auto address = reinterpret_cast<uintptr_t>(given.x) | static_cast<uintptr_t>(given.x_stride * 4);
        return given.x_kind == Kind::f32 && address % 64 == 0;
    }

    template <typename Element>
    void copy(const Product& given) {
        for (int64_t r = 0; r < given.rows; r++) {
            const auto* row = static_cast<const Element*>(given.x) + r * given.x_stride;
            float* to = scratch.data + r * stride;
            int64_t i = 0;
            for (; i + WIDTH <= given.in; i += WIDTH) store(load(row + i), to + i);
            if (i < given.in) store(load_some(row + i, given.in - i), to + i);
        }
    }
};

/// Numbers of one row from `place` on, at most sixteen.
static inline void store_result(F value, void* result, Kind kind, int64_t place, int64_t count) {
    const bool whole = count == WIDTH;
    if (kind == Kind::f32) {
        auto* to = static_cast<float*>(result) + place;
        whole ? store(value, to) : store_some(value, to, count);
    } else if (kind == Kind::bf16) {
        auto* to = static_cast<Bfloat16*>(result) + place;
        whole ? store(value, to) : store_some(value, to, count);
    } else {
        auto* to = static_cast<Half*>(result) + place;
        whole ? store(value, to) : store_some(value, to, count);
    }
}
static inline F load_floats(const float* from, int64_t count) { return count == WIDTH ? load(from) : load_some(from, count); }

/// Sums of one row and at most sixteen columns from n on become results.
static inline void finish(const Product& given, int64_t row, int64_t n, int64_t count, F sums) {
    if (given.scale) sums *= load_floats(given.scale + n, count);
    if (given.bias) sums += load_floats(given.bias + n, count);
    store_result(sums, given.result, given.result_kind, row * given.result_stride + n, count);
}

}  // namespace dlinfer::DLINFER_LEVEL
