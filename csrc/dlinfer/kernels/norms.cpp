#include "norms.h"

#include <cmath>

#include "lanes.h"
#include "parallel.h"
#include "scratch.h"

namespace dlinfer::DLINFER_CPU_CAPABILITY {
namespace {

template <typename Element>
float mean_square(const Element* row, int64_t size) {
    V squares = splat(0);
    in_vectors(size, [&](int64_t i, int64_t count) INLINED {
        const V value = load_upto(row + i, count);
        squares += value * value;
    });
    return total(squares) / static_cast<float>(size);
}

template <typename Element>
void add(const Element* one, const Element* other, Element* result, int64_t size) {
    in_vectors(size, [&](int64_t i, int64_t count) INLINED {
        store_upto(load_upto(one + i, count) + load_upto(other + i, count), result + i, count);
    });
}

// ---- quantising ----

constexpr float LEAST = 1e-7f, LARGEST = 127.0f;

/// The largest magnitude. As integers magnitudes have the same order, and what is no number is above all of them.
template <typename Element>
float largest_magnitude(const Element* row, int64_t size) {
    VU largest = {};
    in_vectors(size, [&](int64_t i, int64_t count) INLINED {
        const VU magnitude = bits_as<VU>(load_upto(row + i, count)) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    });
    uint32_t best = 0;
    for (int i = 0; i < LANES; i++) best = largest[i] > best ? largest[i] : best;
    return bits_as<float>(best);
}

inline float scale_for(float largest) { return (largest < LEAST ? LEAST : largest) / LARGEST; }

template <typename Element>
void quantise(const Element* row, float scale, int8_t* result, int64_t size) {
    in_vectors(size, [&](int64_t i, int64_t count) INLINED {
        const V value = rounded(load_upto(row + i, count) / splat(scale));
        const V8 bytes = __builtin_convertvector(__builtin_convertvector(value, VI), V8);
        std::memcpy(result + i, &bytes, static_cast<size_t>(count));
    });
}

// ---- norms ----

template <typename Element, typename Weight>
struct Norm {
    const NormRows& given;
    const Weight* weight;

    /// Writes to Element, or in float to what is quantised next.
    template <typename Result>
    void scaled(const Element* row, Result* result) const {
        const V factor = splat(1.0f / std::sqrt(mean_square(row, given.size) + given.epsilon));
        in_vectors(given.size, [&](int64_t i, int64_t count) INLINED {
            store_upto(load_upto(row + i, count) * factor * load_upto(weight + i, count), result + i, count);
        });
    }

    void rows(int64_t begin, int64_t end) const {
        Scratch<float> upcast(given.quantised ? given.size : 0);
        for (int64_t r = begin; r < end; r++) {
            const int64_t start = r * given.size;
            const Element* row = static_cast<const Element*>(given.hidden) + start;
            if (given.residual) {
                Element* total = static_cast<Element*>(given.sum) + start;
                add(row, static_cast<const Element*>(given.residual) + start, total, given.size);
                row = total;
            }
            if (!given.quantised) {
                scaled(row, static_cast<Element*>(given.result) + start);
                continue;
            }
            scaled(row, upcast.data);
            given.scales[r] = scale_for(largest_magnitude(upcast.data, given.size));
            quantise(upcast.data, given.scales[r], given.quantised + start, given.size);
        }
    }
};

template <typename Element>
void norm_rows(const NormRows& given, int64_t begin, int64_t end) {
    if (given.weight_is_float)
        Norm<Element, float>{given, static_cast<const float*>(given.weight)}.rows(begin, end);
    else
        Norm<Element, Element>{given, static_cast<const Element*>(given.weight)}.rows(begin, end);
}

template <typename Element>
void quant_rows(const QuantRows& given) {
    const auto* hidden = static_cast<const Element*>(given.hidden);
    if (given.one_scale) *given.scales = scale_for(largest_magnitude(hidden, given.rows * given.size));
    parallel(given.rows, 16, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++) {
            const Element* row = hidden + r * given.size;
            if (!given.one_scale) given.scales[r] = scale_for(largest_magnitude(row, given.size));
            quantise(row, given.scales[given.one_scale ? 0 : r], given.quantised + r * given.size, given.size);
        }
    });
}

}  // namespace

void rms_norm(const NormRows& given) {
    parallel(given.rows, 16, [&](int64_t begin, int64_t end) {
        if (given.dtype == Dtype::f32) norm_rows<float>(given, begin, end);
        if (given.dtype == Dtype::bf16) norm_rows<Bfloat16>(given, begin, end);
        if (given.dtype == Dtype::f16) norm_rows<Half>(given, begin, end);
    });
}

void quantise_rows(const QuantRows& given) {
    if (given.dtype == Dtype::f32) quant_rows<float>(given);
    if (given.dtype == Dtype::bf16) quant_rows<Bfloat16>(given);
    if (given.dtype == Dtype::f16) quant_rows<Half>(given);
}

}  // namespace dlinfer::DLINFER_CPU_CAPABILITY
