// Products of 8-bit integers, summed exactly.
#pragma once
#include <cstdint>

#include "cpu_capability.h"

namespace dlinfer {

/// Sums of so many products fit into 32 bits, whatever the numbers are.
constexpr int64_t MOST_INTEGERS = 65536;

/// result[r, n] = (sum over k of a[r, k] * b[n, k] + whole_bias[n]) * row_scale[r] * column_scale[n] + bias[n].
struct IntegerProduct {
    const int8_t* a;  // [rows, in]
    int64_t a_stride;
    const int8_t* b;  // [out, in]
    int64_t b_stride;

    void* result;  // [rows, out], contiguous
    Dtype result_dtype;
    int64_t rows, in, out;  // in: at most MOST_INTEGERS

    const int32_t* whole_bias;  // or null
    const float* row_scale;     // one for each row if row_scales, else one
    const float* column_scale;  // the same
    const float* bias;          // or null
    bool row_scales, column_scales;
};

/// result = round(x / scale) + offset, within what 8 bits hold. Contiguous.
struct FixedQuantisation {
    const void* x;
    int8_t* result;
    int64_t count;
    Dtype dtype;
    float scale, offset;
};

}  // namespace dlinfer

DLINFER_DECLARE(void multiply_integers(const IntegerProduct& product))
DLINFER_DECLARE(void quantise_fixed(const FixedQuantisation& numbers))
