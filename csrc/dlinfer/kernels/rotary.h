// Rotary position embedding.
#pragma once
#include <cstdint>

#include "cpu_capability.h"

namespace dlinfer {

/// Heads [outer, inner, heads, size] of tokens outer * inner, each turned by the token's row of the tables. The result is dense.
struct Rotation {
    const void* states;
    void* result;
    Dtype dtype;                                         // of both
    int64_t outer, inner, heads, size, rotary;         // only the first `rotary` elements of a head are turned
    int64_t outer_stride, inner_stride, head_stride;   // of the states, in elements
    const void* cosines;                               // [outer * inner, rotary]
    const void* sines;
    Dtype table;                                        // of both tables
    enum class Pairs { halves, adjacent, adjacent_to_halves } pairs;  // which elements are turned together, and where they go
};

}  // namespace dlinfer

DLINFER_DECLARE(void rotate(const Rotation& given))
