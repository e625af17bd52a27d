// RMS norms of rows, with a residual and with quantised results; quantisation of rows.
#pragma once
#include <cstdint>

#include "cpu_capability.h"

namespace dlinfer {

/// Rows of `size` numbers, contiguous.
struct NormRows {
    const void* hidden;
    const void* residual;  // like hidden, or null
    const void* weight;    // float if weight_is_float, else of hidden's dtype
    void* sum;             // hidden + residual, where there is a residual
    void* result;          // of hidden's dtype, or null for a quantised one
    int8_t* quantised;     // and
    float* scales;         // one for each row, or null
    int64_t rows, size;
    Dtype dtype;
    bool weight_is_float;
    float epsilon;
};

struct QuantRows {
    const void* hidden;
    int8_t* quantised;
    float* scales;
    int64_t rows, size;
    Dtype dtype;
    bool one_scale;  // for all rows
};

}  // namespace dlinfer

DLINFER_DECLARE(void rms_norm(const NormRows& rows))
DLINFER_DECLARE(void quantise_rows(const QuantRows& rows))
