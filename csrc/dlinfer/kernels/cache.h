// Keys and values on their way into caches.
#pragma once
#include <cstdint>

#include "attention.h"

namespace dlinfer {

/// Tokens [tokens, heads, size] and a paged cache; each token goes to its slot, -1 leaves it out. Strides are in bytes.
struct Filling {
    const char* states;
    int64_t token_stride, head_stride;
    char* cache;
    int64_t block_stride, place_stride, cache_head_stride;
    const void* slots;
    bool slots_are_long;
    int64_t slots_stride;  // in elements
    int64_t tokens, heads, size, block_size;
    int64_t element;  // bytes of an element, where it is copied as it is
    Dtype dtype;        // of the states, where they are quantised
    CacheElement stored;    // how the cache holds them: i8, u8 or u4; others: as they are
    const float* scales;  // [heads, size], where they are quantised: stored is round(x / scale + zero)
    const float* zeros;   // the same, or null
};

/// Rows of bytes that go from one address to another.
struct Copy {
    const char* from;
    char* to;
    int64_t rows, bytes, from_stride, to_stride;
};

}  // namespace dlinfer

DLINFER_DECLARE(void fill_cache(const Filling& given))
DLINFER_DECLARE(void copy_rows(const Copy& given))
