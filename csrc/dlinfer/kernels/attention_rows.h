// Rows of keys and values as floats, whatever holds them.
#pragma once
#include "attention.h"
#include "registers.h"

namespace dlinfer::DLINFER_CPU_CAPABILITY {

/// Keys that are looked at together. A row's sums are always added in steps of as many, from the first key on.
constexpr int64_t TILE = 64;

/// Where the rows of a tile are: rows behind the last one are the last one again.
struct RowPointers {
    const float* at[TILE];
    const float* operator()(int64_t row) const { return at[row]; }
};

static inline void restore_row(const uint8_t* from, bool is_signed, int64_t size, const float* scale, const float* zero, float* to) {
    const auto* same = reinterpret_cast<const int8_t*>(from);
    if (is_signed && zero)
        for (int64_t i = 0; i < size; i++) to[i] = (static_cast<float>(same[i]) - zero[i]) * scale[i];
    else if (is_signed)
        for (int64_t i = 0; i < size; i++) to[i] = static_cast<float>(same[i]) * scale[i];
    else if (zero)
        for (int64_t i = 0; i < size; i++) to[i] = (static_cast<float>(from[i]) - zero[i]) * scale[i];
    else
        for (int64_t i = 0; i < size; i++) to[i] = static_cast<float>(from[i]) * scale[i];
}

static inline void restore_halves(const uint8_t* from, int64_t size, const float* scale, const float* zero, float* to) {
    const int64_t half = size / 2;
    for (int64_t i = 0; i < half; i++) {
        to[i] = static_cast<float>(from[i] & 15);
        to[i + half] = static_cast<float>(from[i] >> 4);
    }
    if (zero)
        for (int64_t i = 0; i < size; i++) to[i] -= zero[i];
    for (int64_t i = 0; i < size; i++) to[i] *= scale[i];
}

static inline void float_row(const Side& side, int64_t head, const char* from, float* to) {
    const float* scale = side.scales ? side.scales + head * side.size : nullptr;
    const float* zero = side.zeros ? side.zeros + head * side.size : nullptr;
    const auto* bytes = reinterpret_cast<const uint8_t*>(from);
    switch (side.stored) {
        case CacheElement::f32: return widen_row(reinterpret_cast<const float*>(from), side.size, to);
        case CacheElement::bf16: return widen_row(reinterpret_cast<const Bfloat16*>(from), side.size, to);
        case CacheElement::f16: return widen_row(reinterpret_cast<const Half*>(from), side.size, to);
        case CacheElement::i8:
        case CacheElement::u8: restore_row(bytes, side.stored == CacheElement::i8, side.size, scale, zero, to); break;
        case CacheElement::u4: restore_halves(bytes, side.size, scale, zero, to); break;
    }
    for (int64_t i = side.size; i < padded(side.size); i++) to[i] = 0;
}

/// Whether rows can be read where they lie. Otherwise a tile of them is copied first.
static inline bool lies_ready(const Side& side) { return side.stored == CacheElement::f32 && side.size % LANES == 0; }

/// Where the keys of one sequence lie: in blocks of a table's row, or all in one block.
struct Blocks {
    const void* table;
    bool is_long;
    int64_t size;

    Blocks(const Attention& all, const Sequence& sequence)
        : table(!all.table           ? nullptr
                : all.table_is_long ? static_cast<const void*>(static_cast<const int64_t*>(all.table) + sequence.table_offset)
                                    : static_cast<const int32_t*>(all.table) + sequence.table_offset),
          is_long(all.table_is_long),
          size(all.table ? all.block_size : INT64_MAX) {}
    int64_t operator[](int64_t column) const {
        return !table ? 0 : is_long ? static_cast<const int64_t*>(table)[column] : static_cast<const int32_t*>(table)[column];
    }
};

/// Finds the rows of `count` keys from `first` on, or copies them to `copy` (TILE rows of padded size). `base`: the head in block 0.
static inline void find_rows(const Side& side, const Blocks& blocks, const char* base, int64_t head, int64_t first, int64_t count, bool ready,
                             float* copy, RowPointers& rows) {
    const int64_t stride = side.token_stride, step = padded(side.size);
    int64_t column = first / blocks.size, index = first % blocks.size;
    for (int64_t row = 0; row < count; column++, index = 0) {
        const char* from = base + blocks[column] * side.block_stride + index * stride;
        const int64_t last = count - row < blocks.size - index ? count : row + blocks.size - index;
        for (; ready && row < last; row++, from += stride) rows.at[row] = reinterpret_cast<const float*>(from);
        for (; row < last; row++, from += stride) {
            float_row(side, head, from, copy + row * step);
            rows.at[row] = copy + row * step;
        }
    }
    for (int64_t row = count; row < TILE; row++) rows.at[row] = rows.at[count - 1];
}

}  // namespace dlinfer::DLINFER_CPU_CAPABILITY
