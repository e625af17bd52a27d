#include "cache.h"

#include "parallel.h"
#include "registers.h"

namespace dlinfer::DLINFER_CPU_CAPABILITY {
namespace {

/// Elements for which starting a thread pays.
constexpr int64_t ENOUGH = 64 * 1024;

/// Whole numbers from low to high, halves to even; 0 for what is no number. Clamped first: the bounds are whole.
VI rounded(V value, float low, float high) {
    value = value == value ? value : V{};
    value = value < low ? splat(low) : value;
    value = value > high ? splat(high) : value;
    return bits_as<VI>(value + 12582912.0f) - 0x4b400000;  // 1.5 * 2^23: the whole number is in the lowest bits
}

struct Range {
    float low, high;
};
Range range_of(CacheElement stored) {
    if (stored == CacheElement::i8) return {-128, 127};
    return stored == CacheElement::u8 ? Range{0, 255} : Range{0, 15};
}

/// Numbers from `first` on of one head, as many as there are lanes or fewer.
template <typename Element>
VI quantised(const Filling& given, const Element* row, int64_t head, int64_t first, int64_t count) {
    float value[LANES] = {}, scale[LANES], zero[LANES] = {};
    for (int64_t i = 0; i < LANES; i++) {
        scale[i] = 1;
        if (i >= count) continue;
        value[i] = widen(row[first + i]);
        scale[i] = given.scales[head * given.size + first + i];
        if (given.zeros) zero[i] = given.zeros[head * given.size + first + i];
    }
    V number = load_lanes(value) / load_lanes(scale);
    if (given.zeros) number += load_lanes(zero);
    const Range range = range_of(given.stored);
    return rounded(number, range.low, range.high);
}

template <typename Element>
void quantise_head(const Filling& given, const Element* row, int64_t head, uint8_t* to) {
    const bool halves = given.stored == CacheElement::u4;
    const int64_t bytes = halves ? given.size / 2 : given.size;
    for (int64_t first = 0; first < bytes; first += LANES) {
        const int64_t count = bytes - first < LANES ? bytes - first : LANES;
        VI number = quantised(given, row, head, first, count);
        if (halves) number |= quantised(given, row, head, first + bytes, count) << 4;
        for (int64_t i = 0; i < count; i++) to[first + i] = static_cast<uint8_t>(number[i]);
    }
}

template <typename Element>
void quantise_token(const Filling& given, const char* from, char* to) {
    for (int64_t head = 0; head < given.heads; head++)
        quantise_head(given, reinterpret_cast<const Element*>(from + head * given.head_stride), head,
                      reinterpret_cast<uint8_t*>(to + head * given.cache_head_stride));
}

void copy_token(const Filling& given, const char* from, char* to) {
    const int64_t bytes = given.size * given.element;
    if (given.head_stride == bytes && given.cache_head_stride == bytes) {
        std::memcpy(to, from, static_cast<size_t>(bytes * given.heads));
        return;
    }
    for (int64_t head = 0; head < given.heads; head++)
        std::memcpy(to + head * given.cache_head_stride, from + head * given.head_stride, static_cast<size_t>(bytes));
}

}  // namespace

void fill_cache(const Filling& given) {
    if (!given.heads || !given.size) return;  // memory of nothing has no address
    parallel(given.tokens, ENOUGH / (given.heads * given.size + 1) + 1, [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; token++) {
            const int64_t index = token * given.slots_stride;
            const int64_t slot = given.slots_are_long ? static_cast<const int64_t*>(given.slots)[index] : static_cast<const int32_t*>(given.slots)[index];
            if (slot < 0) continue;
            const char* from = given.states + token * given.token_stride;
            char* to = given.cache + slot / given.block_size * given.block_stride + slot % given.block_size * given.place_stride;
            if (!given.scales)
                copy_token(given, from, to);
            else if (given.dtype == Dtype::f32)
                quantise_token<float>(given, from, to);
            else if (given.dtype == Dtype::bf16)
                quantise_token<Bfloat16>(given, from, to);
            else
                quantise_token<Half>(given, from, to);
        }
    });
}

void copy_rows(const Copy& given) {
    if (!given.bytes) return;
    parallel(given.rows, ENOUGH / (given.bytes + 1) + 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++)
            std::memcpy(given.to + row * given.to_stride, given.from + row * given.from_stride, static_cast<size_t>(given.bytes));
    });
}

}  // namespace dlinfer::DLINFER_CPU_CAPABILITY
