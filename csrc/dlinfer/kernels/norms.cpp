#include "norms.h"

#include <cmath>

#include "parallel.h"
#include "vector.h"

namespace dlinfer::DLINFER_LEVEL {
namespace {

template <typename Element>
float mean_square(const Element* row, int64_t size) {
    F total = fill(0);
    int64_t i = 0;
    for (; i + WIDTH <= size; i += WIDTH) {
        const F value = load(row + i);
        total += value * value;
    }
    if (i < size) {
        const F value = load_some(row + i, size - i);
        total += value * value;
    }
    return sum(total) / static_cast<float>(size);
}

template <typename Element>
void norm_rows(const NormRows& given, int64_t begin, int64_t end) {
    const auto* weight = static_cast<const Element*>(given.weight);
    for (int64_t r = begin; r < end; r++) {
        const auto* row = static_cast<const Element*>(given.hidden) + r * given.size;
        auto* result = static_cast<Element*>(given.result) + r * given.size;
        const F factor = fill(1.0f / std::sqrt(mean_square(row, given.size) + given.epsilon));
        int64_t i = 0;
        for (; i + WIDTH <= given.size; i += WIDTH) store(load(row + i) * factor * load(weight + i), result + i);
        if (i < given.size) {
            const int64_t rest = given.size - i;
            store_some(load_some(row + i, rest) * factor * load_some(weight + i, rest), result + i, rest);
        }
    }
}

}  // namespace

void rms_norm(const NormRows& given) {
    parallel(given.rows, 16, [&](int64_t begin, int64_t end) {
        if (given.kind == Kind::f32) norm_rows<float>(given, begin, end);
        if (given.kind == Kind::bf16) norm_rows<Bfloat16>(given, begin, end);
        if (given.kind == Kind::f16) norm_rows<Half>(given, begin, end);
    });
}

}  // namespace dlinfer::DLINFER_LEVEL
