// RMS norms of rows, with a residual and with quantised results; quantisation of rows.
#pragma once
#include <cstdint>

#include "kinds.h"
#include "levels.h"

namespace dlinfer {

/// Rows of `size` numbers, contiguous.
struct NormRows {
    const void* hidden;
    const void* residual;  // like hidden, or null
    const void* weight;    // float if weight_is_float, else of hidden's kind
    void* sum;             // hidden + residual, where there is a residual
    void* result;          // of hidden's kind, or null for a quantised one
    int8_t* quantised;     // and
    float* scales;         // one for each row, or null
    int64_t rows, size;
    Kind kind;
    bool weight_is_float;
    float epsilon;
};

struct QuantRows {
    const void* hidden;
    int8_t* quantised;
    float* scales;
    int64_t rows, size;
    Kind kind;
    bool one_scale;  // for all rows
};

}  // namespace dlinfer

DLINFER_DECLARE(void rms_norm(const NormRows& rows))
DLINFER_DECLARE(void quantise_rows(const QuantRows& rows))
