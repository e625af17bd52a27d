// Attention of sequences over keys that lie in pages or one after the other.
#pragma once
#include <cstdint>

#include "cpu_capability.h"

namespace dlinfer {

/// How caches hold an element. u4 has two in a byte: element j in the low half of byte j, j + size / 2 in its high half.
enum class CacheElement { f32, bf16, f16, i8, u8, u4 };

/// Keys or values. Strides are in bytes; the elements of a head lie side by side.
struct Side {
    const char* data;
    CacheElement stored;
    int64_t size;  // elements of a head
    int64_t block_stride, token_stride, head_stride;
    const float* scales;  // [kv_heads, size]: an element is (stored - zero) * scale; null if it is not quantised
    const float* zeros;   // the same, or null
};

/// One sequence. Offsets say where it begins: of query, output and mask in elements, of keys and values in bytes.
struct Sequence {
    int64_t queries, keys;
    int64_t query_offset, output_offset, mask_offset;
    int64_t key_offset, value_offset;
    int64_t table_offset;  // of its row of the table, in elements
};

/// What is added to scores or hides keys.
struct Mask {
    enum class Type { none, hides, added } type;
    const void* data;  // bytes that are 0 or 1, or floats
    int64_t stride;    // from one query to the next, in elements
};

struct Attention {
    const void* query;
    void* output;
    Dtype dtype;  // of query and output
    int64_t query_token, query_head, output_token, output_head;  // strides in elements
    int64_t heads, kv_heads;
    Side keys, values;
    const void* table;  // blocks of each sequence; null: keys lie one after the other
    bool table_is_long;  // int64, else int32
    int64_t block_size;
    const Sequence* sequences;
    int64_t count;
    float scale, soft_cap;  // 0: none
    bool causal;
    int64_t window_left, window_right;  // -1: none
    const float* slopes;                // alibi, one for each head, or null
    Mask mask;
};

}  // namespace dlinfer

/// The output may lie on the query, row over row. The same row gets the same bits whatever stands beside it in the batch, and whatever
/// keys and values that it does not see hold.
DLINFER_DECLARE(void attention(const Attention& given))
