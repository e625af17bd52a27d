// Rounding to whole numbers.
#pragma once
#include "vector.h"

namespace dlinfer::DLINFER_LEVEL {

/// Rounds halves to even, for numbers up to 2^22: at this size a float has no digits behind the point.
static inline F rounded(F value) {
    constexpr float SHIFT = 12582912.0f;
    return (value + SHIFT) - SHIFT;
}

}  // namespace dlinfer::DLINFER_LEVEL
