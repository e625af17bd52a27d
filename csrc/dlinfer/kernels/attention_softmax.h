// Scores of one query over a tile of keys, and the softmax that grows tile by tile.
#pragma once
#include <cmath>

#include "attention_rows.h"

namespace dlinfer::DLINFER_CPU_CAPABILITY {

constexpr float NOTHING = -INFINITY;

/// One query of one head: which keys it sees, and its softmax so far.
struct Row {
    int64_t position;     // of its own key
    int64_t first, last;  // keys from first to before last are seen
    int64_t head;
    const void* mask;  // its row, or null
    float largest = NOTHING;
    V total = {};
};

static inline Row row_of(const Attention& all, const Sequence& sequence, int64_t query, int64_t head) {
    Row row;
    row.head = head;
    row.position = sequence.keys - sequence.queries + query;
    row.last = all.causal ? row.position + 1 : sequence.keys;
    // Windows may be as large as numbers are: compared, not added.
    if (all.window_right >= 0 && all.window_right < row.last - row.position) row.last = row.position + all.window_right + 1;
    if (row.last > sequence.keys) row.last = sequence.keys;
    row.first = all.window_left >= 0 && all.window_left < row.position ? row.position - all.window_left : 0;
    row.mask = nullptr;
    if (all.mask.type != Mask::Type::none) {
        const int64_t size = all.mask.type == Mask::Type::added ? sizeof(float) : 1;
        row.mask = static_cast<const char*>(all.mask.data) + (sequence.mask_offset + query * all.mask.stride) * size;
    }
    return row;
}

static inline bool sees_key(const Attention& all, const Row& row, int64_t key) {
    const bool hidden = all.mask.type == Mask::Type::hides && static_cast<const uint8_t*>(row.mask)[key];
    return row.first <= key && key < row.last && !hidden;
}

/// Whether scores are more than a product times the scale.
static inline bool changes_scores(const Attention& all) {
    return all.soft_cap != 0 || all.slopes || all.mask.type != Mask::Type::none;
}

/// Products of a tile that begins at `start`, of which `count` are there, become scores.
static inline void change_scores(const Attention& all, const Row& row, int64_t start, int64_t count, float* products) {
    VI lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    for (int64_t i = 0; i < count; i += LANES) {
        V score = load_lanes(products + i) * all.scale;
        if (all.soft_cap != 0) score = hyperbolic_tangent(score / all.soft_cap) * all.soft_cap;
        if (all.slopes) {
            const VI distance = lane + static_cast<int32_t>(start + i - row.position);
            score -= __builtin_convertvector(distance < 0 ? -distance : distance, V) * all.slopes[row.head];
        }
        store_lanes(score, products + i);
    }
    if (all.mask.type == Mask::Type::added) {
        const float* mask = static_cast<const float*>(row.mask) + start;
        for (int64_t i = 0; i < count; i++) products[i] += mask[i];
    } else if (all.mask.type == Mask::Type::hides) {
        const auto* mask = static_cast<const uint8_t*>(row.mask) + start;
        for (int64_t i = 0; i < count; i++) products[i] = mask[i] ? NOTHING : products[i];
    }
}

/// Products of a tile become weights, which are not divided by their sum yet. Returns the factor for all that was summed before.
static inline float take_tile(const Attention& all, Row& row, int64_t start, int64_t count, bool changes, float* products) {
    float scale = all.scale;
    if (changes) {
        change_scores(all, row, start, count, products);
        scale = 1;
    }
    const int64_t first = row.first - start, last = row.last - start < count ? row.last - start : count;
    V largest_lanes = splat(NOTHING);
    if (first <= 0 && last >= TILE) {
        for (int64_t i = 0; i < TILE; i += LANES) largest_lanes = larger_lanes(largest_lanes, load_lanes(products + i) * scale);
    } else {
        VI index;
        for (int i = 0; i < LANES; i++) index[i] = i;
        for (int64_t i = 0; i < TILE; i += LANES, index += static_cast<int32_t>(LANES)) {
            const VI hidden = (index < static_cast<int32_t>(first > TILE ? TILE : first)) | (index >= static_cast<int32_t>(last < 0 ? 0 : last));
            const V score = hidden ? splat(NOTHING) : load_lanes(products + i) * scale;
            store_lanes(score, products + i);
            largest_lanes = larger_lanes(largest_lanes, score);
        }
        scale = 1;
    }
    const float found = largest(largest_lanes), largest_now = found > row.largest ? found : row.largest;
    // Where nothing is seen yet, weights are exp(-inf - 0) = 0; NaN stays NaN.
    const float base = largest_now == NOTHING ? 0 : largest_now;
    const float factor = row.largest == largest_now ? 1 : std::exp(row.largest - base);
    V sum = row.total * factor;
    for (int64_t i = 0; i < TILE; i += LANES) {
        const V weight = exponential(load_lanes(products + i) * scale - base);
        sum += weight;
        store_lanes(weight, products + i);
    }
    row.total = sum;
    row.largest = largest_now;
    return factor;
}

}  // namespace dlinfer::DLINFER_CPU_CAPABILITY
