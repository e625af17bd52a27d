#include "rotary.h"

#include "parallel.h"
#include "registers.h"
#include "scratch.h"

namespace dlinfer::DLINFER_CPU_CAPABILITY {
namespace {

constexpr int64_t ENOUGH = 32 * 1024;

/// Element i of the first half turns with element i of the second.
template <typename Element>
void turn_halves(const Element* from, const float* cosines, const float* sines, int64_t size, int64_t rotary, Element* to) {
    const int64_t half = rotary / 2;
    int64_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        const V first = load_lanes(from + i), second = load_lanes(from + half + i);
        store_lanes(first * load_lanes(cosines + i) - second * load_lanes(sines + i), to + i);
        store_lanes(second * load_lanes(cosines + half + i) + first * load_lanes(sines + half + i), to + half + i);
    }
    for (; i < half; i++) {
        const float first = widen(from[i]), second = widen(from[half + i]);
        narrow(first * cosines[i] - second * sines[i], to + i);
        narrow(second * cosines[half + i] + first * sines[half + i], to + half + i);
    }
    if (size > rotary) std::memcpy(static_cast<void*>(to + rotary), from + rotary, sizeof(Element) * static_cast<size_t>(size - rotary));
}

/// Element 2i turns with element 2i + 1.
template <typename Element>
void turn_pairs(const Element* from, const float* cosines, const float* sines, int64_t size, bool to_halves, Element* to) {
    const int64_t half = size / 2;
    for (int64_t i = 0; i < half; i++) {
        const float first = widen(from[2 * i]), second = widen(from[2 * i + 1]);
        narrow(first * cosines[i] - second * sines[i], to + (to_halves ? i : 2 * i));
        narrow(second * cosines[half + i] + first * sines[half + i], to + (to_halves ? half + i : 2 * i + 1));
    }
}

/// A row of a table as floats: where it is, or a copy.
const float* table_row(const void* table, Dtype dtype, int64_t row, int64_t size, float* copy) {
    if (dtype == Dtype::f32) return static_cast<const float*>(table) + row * size;
    if (dtype == Dtype::bf16)
        widen_row(static_cast<const Bfloat16*>(table) + row * size, size, copy);
    else
        widen_row(static_cast<const Half*>(table) + row * size, size, copy);
    return copy;
}

template <typename Element>
void rotate_tokens(const Rotation& given, int64_t begin, int64_t end) {
    const Scratch<float> copies(2 * padded(given.rotary));
    for (int64_t token = begin; token < end; token++) {
        const float* cosines = table_row(given.cosines, given.table, token, given.rotary, copies.data);
        const float* sines = table_row(given.sines, given.table, token, given.rotary, copies.data + padded(given.rotary));
        const auto* from = static_cast<const Element*>(given.states) + token / given.inner * given.outer_stride + token % given.inner * given.inner_stride;
        auto* to = static_cast<Element*>(given.result) + token * given.heads * given.size;
        for (int64_t head = 0; head < given.heads; head++, from += given.head_stride, to += given.size) {
            if (given.pairs == Rotation::Pairs::halves)
                turn_halves(from, cosines, sines, given.size, given.rotary, to);
            else
                turn_pairs(from, cosines, sines, given.size, given.pairs == Rotation::Pairs::adjacent_to_halves, to);
        }
    }
}

}  // namespace

void rotate(const Rotation& given) {
    parallel(given.outer * given.inner, ENOUGH / (given.heads * given.size + 1) + 1, [&](int64_t begin, int64_t end) {
        if (given.dtype == Dtype::f32) rotate_tokens<float>(given, begin, end);
        if (given.dtype == Dtype::bf16) rotate_tokens<Bfloat16>(given, begin, end);
        if (given.dtype == Dtype::f16) rotate_tokens<Half>(given, begin, end);
    });
}

}  // namespace dlinfer::DLINFER_CPU_CAPABILITY
