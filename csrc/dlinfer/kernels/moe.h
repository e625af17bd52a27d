// Routing tokens to experts, and bringing their results together.
#pragma once
#include <cstdint>

#include "cpu_capability.h"

namespace dlinfer {

struct Gate {
    const void* logits;  // [rows, experts], contiguous
    Dtype dtype;
    int64_t rows, experts, topk;
    int64_t groups;  // topk / groups are chosen in each; 1: of all
    bool renormalize;
    float* weights;  // [rows, topk]
    int64_t* ids;
};

/// sums[tokens[i]] += shares[i] * rows[i].
struct Shares {
    float* sums;        // [all tokens, size]
    const float* rows;  // [count, size]
    const int64_t* tokens;
    const float* shares;
    int64_t count, size;
};

}  // namespace dlinfer

DLINFER_DECLARE(void choose_experts(const Gate& gate))
DLINFER_DECLARE(void add_shares(const Shares& shares))
DLINFER_DECLARE(void narrow_numbers(const float* from, int64_t count, Dtype dtype, void* to))
