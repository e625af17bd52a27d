// Products of a few rows with a large matrix of weights: every weight is read once, as fast as memory gives it.
//
// The sum of an element is formed in the same order whatever else is computed with it: a row's result has the same bits
// beside any other rows, and with any number of threads.
#pragma once
#include <cstdint>

#include "kinds.h"
#include "levels.h"

namespace dlinfer {

/// How weights are stored.
enum class Stored { f32, bf16, f16, int8, int4_plain, int4_awq };

/// result[r, n] = scale[n] * sum over k of x[r, k] * weight[n, k] + bias[n].
struct Product {
    const void* x;  // [rows, in]
    int64_t x_stride;
    Kind x_kind;

    const void* weight;  // [out, in]
    int64_t weight_stride;
    Stored stored;

    void* result;  // [rows, out]
    int64_t result_stride;
    Kind result_kind;

    int64_t rows, in, out;
    const float* scale;  // [out], or null
    const float* bias;   // [out], or null

    // Weights in groups of `group` neighbours along `in`: an element is (weight + shift[g, n]) * factor[g, n]. 0: no groups.
    int64_t group;
    const float* factor;  // [groups, out]
    const float* shift;   // [groups, out], or null
};

}  // namespace dlinfer

DLINFER_DECLARE(void multiply_rows(const Product& product))
