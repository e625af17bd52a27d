// RMS norms of rows.
#pragma once
#include <cstdint>

#include "levels.h"

namespace dlinfer {

enum class Kind { f32, bf16, f16 };

struct NormRows {
    const void* hidden;
    const void* weight;
    void* result;
    int64_t rows, size;
    Kind kind;  // of all three
    float epsilon;
};

}  // namespace dlinfer

DLINFER_DECLARE(void rms_norm(const NormRows& rows))
