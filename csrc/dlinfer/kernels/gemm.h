// Products of a few rows with a large matrix of weights: every weight is read once, as fast as memory gives it.
//
// The sum of an element is formed in the same order whatever else is computed with it: a row's result has the same bits
// beside any other rows, and with any number of threads.
#pragma once
#include <cstdint>

#include "cpu_capability.h"

namespace dlinfer {

/// How weights are stored. int4: eight neighbours along `out` in 32 bits, signed and in order, or unsigned and as AWQ orders them.
enum class Stored { f32, bf16, f16, int8, int4, int4_awq };

/// result[r, n] = scale[n] * sum over k of x[r, k] * w[k, n] + bias[n].
///
/// w is the stored weight, or where there are groups of `group` neighbours along `in`: (weight + shift[g, n]) * factor[g, n].
struct Product {
    const void* x;  // [rows, in]
    int64_t x_stride;
    Dtype x_dtype;

    const void* weight;  // by rows: [out, in]; by columns: [in, out], or [in, out / 8]
    int64_t weight_stride;
    Stored stored;

    void* result;  // [rows, out]
    int64_t result_stride;
    Dtype result_dtype;

    int64_t rows, in, out;
    const float* scale;  // [out], or null
    const float* bias;   // [out], or null

    int64_t group;            // 0: no groups
    const float* factor;      // [groups, out]
    const float* shift;       // [groups, out], or null
    const uint32_t* lowered;  // by columns: the negative of shift, packed as the weight is [groups, out / 8], or null
};

/// Columns that are laid out as one when weights are restored by columns.
constexpr int64_t COLUMN_UNIT = 128;

}  // namespace dlinfer

/// For weights whose neighbours in memory are neighbours along `in`, and along `out`.
DLINFER_DECLARE(void multiply_rows(const Product& product))
DLINFER_DECLARE(void multiply_columns(const Product& product))

// For many rows weights that are no floats yet become such, some columns at a time, for a library to multiply. Sums of columns `begin` to `end`
// then become results. By rows a panel is [end - begin, in]; by columns [in, padded], with columns in an order that
// finish_columns undoes, `begin` a multiple of COLUMN_UNIT and padded the next multiple of it.
DLINFER_DECLARE(void restore_rows(const Product& product, int64_t begin, int64_t end, float* panel))
DLINFER_DECLARE(void finish_rows(const Product& product, int64_t begin, int64_t end, const float* sums, int64_t stride))
DLINFER_DECLARE(void restore_columns(const Product& product, int64_t begin, int64_t end, float* panel))
DLINFER_DECLARE(void finish_columns(const Product& product, int64_t begin, int64_t end, const float* sums, int64_t stride))
