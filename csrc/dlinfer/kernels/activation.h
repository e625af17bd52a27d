// Gated activations.
#pragma once
#include <cstdint>

#include "cpu_capability.h"

namespace dlinfer {

/// blocks times `size` gates followed by `size` numbers that they gate; all of it contiguous.
struct GatedBlocks {
    const void* input;  // [blocks, 2, size]
    void* result;       // [blocks, size]
    int64_t blocks, size;
    Dtype dtype, result_dtype;  // the same, or the input is float
};

}  // namespace dlinfer

DLINFER_DECLARE(void silu_and_mul(const GatedBlocks& blocks))
