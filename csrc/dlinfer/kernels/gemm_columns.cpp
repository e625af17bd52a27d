// Weights whose neighbours in memory belong to different sums: rows of weights times one number each, added up.
#include "gemm_operands.h"
#include "gemm_tile.h"
#include "parallel.h"

namespace dlinfer::DLINFER_CPU_CAPABILITY {
namespace {

// Rows of weights that are read together, as many as the capability's registers hold.
#if defined(__AVX512F__)
constexpr int DEPTH = 8;
#elif defined(__AVX2__)
constexpr int DEPTH = 4;
#else
constexpr int DEPTH = 2;
#endif
// Sums of this many rows and columns stay in the first cache.
constexpr int64_t CACHED_SUMS = 8192, MOST_COLUMNS = 1024;

/// Neighbours are one vector.
template <typename Element>
struct Numbers {
    using Memory = Element;
    using Word = V;
    static constexpr int PLANES = 1, UNIT = LANES;

    INLINE Word word(const Memory* from) { return load_lanes(from); }
    INLINE Word word_some(const Memory* from, int64_t columns) { return load_some_lanes(from, columns); }
    template <int PLANE>
    INLINE V plane(Word word) {
        return word;
    }
    static constexpr int64_t column(int64_t, int64_t lane) { return lane; }
};

/// Words of eight elements are eight vectors: the first elements of all words, and so on.
template <bool AWQ>
struct Nibbles {
    using Memory = uint32_t;
    using Word = VU;
    static constexpr int PLANES = 8, UNIT = 8 * LANES;

    INLINE Word word(const Memory* from) { return read<VU>(from); }
    INLINE Word word_some(const Memory* from, int64_t columns) {
        Memory copy[LANES] = {};
        std::memcpy(copy, from, static_cast<size_t>(columns) / 2);
        return word(copy);
    }
    template <int PLANE>
    INLINE V plane(Word word) {
#if defined(__AVX512F__)
        // A table of all values; the lookup looks at the lowest four bits only.
        constexpr float WRAP = AWQ ? 0 : -16;
        const V table = {0, 1, 2, 3, 4, 5, 6, 7, 8 + WRAP, 9 + WRAP, 10 + WRAP, 11 + WRAP, 12 + WRAP, 13 + WRAP, 14 + WRAP, 15 + WRAP};
        return __builtin_shuffle(table, bits_as<VI>(word >> (4 * PLANE)));
#else
        const VI value = AWQ ? bits_as<VI>(word >> (4 * PLANE) & 15u) : bits_as<VI>(word << (28 - 4 * PLANE)) >> 28;
        return __builtin_convertvector(value, V);
#endif
    }
    static constexpr int64_t column(int64_t plane, int64_t lane) {
        constexpr int64_t ORDER[] = {0, 2, 4, 6, 1, 3, 5, 7};
        return 8 * lane + (AWQ ? ORDER[plane] : plane);
    }
};

/// A range of columns, whole units of them but for the last: what is restored or multiplied at a time.
template <typename Source, bool GROUPED>
struct Columns {
    const Product& given;
    int64_t begin, count;           // `begin` is a multiple of the unit
    Scratch<float> factor, offset;  // of the present group, in the order of planes

    Columns(const Product& product, int64_t first, int64_t last)
        : given(product), begin(first), count(last - first), factor(GROUPED ? padded() : 0), offset(GROUPED ? padded() : 0) {}

    int64_t padded() const { return (count + Source::UNIT - 1) / Source::UNIT * Source::UNIT; }

    [[gnu::always_inline]] typename Source::Word word(const typename Source::Memory* row, int64_t unit) const {
        // A unit of elements is as long in memory as its words.
        const auto* from = row + unit / (Source::PLANES == 1 ? 1 : 8);
        return count - unit >= Source::UNIT ? Source::word(from) : Source::word_some(from, count - unit);
    }
    const typename Source::Memory* row(const void* matrix, int64_t stride, int64_t k) const {
        return static_cast<const typename Source::Memory*>(matrix) + k * stride + begin / (Source::PLANES == 1 ? 1 : 8);
    }

    /// Numbers of columns in the order of planes; 0 behind the last.
    void arrange(const float* from, float* to) const {
        float rest[Source::UNIT] = {};
        for (int64_t unit = 0; unit < count; unit += Source::UNIT) {
            const float* columns = from + unit;
            if (count - unit < Source::UNIT) {
                std::memcpy(rest, columns, sizeof(float) * static_cast<size_t>(count - unit));
                columns = rest;
            }
            each<Source::PLANES>([&](auto p) INLINED {
                for (int64_t lane = 0; lane < LANES; lane++) to[unit + p * LANES + lane] = columns[Source::column(p, lane)];
            });
        }
    }

    /// Factors and shifts of group g in the order of planes; an element is weight * factor + offset.
    void take_group(int64_t g) {
        arrange(given.factor + g * given.out + begin, factor.data);
        if (given.shift) arrange(given.shift + g * given.out + begin, offset.data);
        for (int64_t i = 0; i < padded(); i += LANES)
            store_lanes(given.shift ? load_lanes(offset.data + i) * load_lanes(factor.data + i) : splat(0), offset.data + i);
        if constexpr (Source::PLANES > 1) {
            if (!given.lowered) return;
            const auto* zeros = row(given.lowered, given.out / 8, g);
            for (int64_t unit = 0; unit < count; unit += Source::UNIT) {
                const auto packed = word(zeros, unit);
                each<Source::PLANES>([&](auto p) INLINED {
                    const int64_t index = unit + p * LANES;
                    store_lanes(Source::template plane<p>(packed) * -load_lanes(factor.data + index), offset.data + index);
                });
            }
        }
    }

    /// Calls body(k, rows) for DEPTH rows of weights, or for one, at a time; groups begin with take_group.
    template <typename Body>
    void walk(const Body& body) {
        const int64_t group = GROUPED ? given.group : given.in;
        for (int64_t g = 0, first = 0; first < given.in; g++, first += group) {
            if constexpr (GROUPED) take_group(g);
            int64_t k = first;
            for (; k + DEPTH <= first + group; k += DEPTH) body(k, std::integral_constant<int, DEPTH>{});
            for (; k < first + group; k++) body(k, std::integral_constant<int, 1>{});
        }
    }

    /// visit(index, elements[ROWS]) for every vector of columns of ROWS rows of weights from k on; index is in the order of planes.
    template <int ROWS, typename Visit>
    [[gnu::always_inline]] void elements(int64_t k, const Visit& visit) const {
        const auto* first = row(given.weight, given.weight_stride, k);
        const int64_t stride = given.weight_stride;
        for (int64_t unit = 0; unit < count; unit += Source::UNIT) {
            typename Source::Word words[ROWS];
            each<ROWS>([&](auto i) INLINED {
                words[i] = word(first + i * stride, unit);
                __builtin_prefetch(first + (i + ROWS) * stride + unit / (Source::PLANES == 1 ? 1 : 8));
            });
            each<Source::PLANES>([&](auto p) INLINED {
                const int64_t index = unit + p * LANES;
                V values[ROWS];
                each<ROWS>([&](auto i) INLINED {
                    values[i] = Source::template plane<p>(words[i]);
                    if constexpr (GROUPED) values[i] = values[i] * load_lanes(factor.data + index) + load_lanes(offset.data + index);
                });
                visit(index, values);
            });
        }
    }

    /// Adds products to sums [rows, padded()].
    void multiply(const AlignedRows& x, float* sums) {
        const int64_t width = padded();
        walk([&](int64_t k, auto depth) {
            constexpr int ROWS = decltype(depth)::value;
            elements<ROWS>(k, [&](int64_t index, const V(&values)[ROWS]) INLINED {
                for (int64_t r = 0; r < given.rows; r++) {
                    const float* factors = x.data + r * x.stride + k;
                    V sum = load_lanes(sums + r * width + index);
                    each<ROWS>([&](auto i) INLINED { sum += values[i] * factors[i]; });
                    store_lanes(sum, sums + r * width + index);
                }
            });
        });
    }

    void restore(float* panel, int64_t width) {
        walk([&](int64_t k, auto depth) {
            constexpr int ROWS = decltype(depth)::value;
            elements<ROWS>(k, [&](int64_t index, const V(&values)[ROWS]) INLINED {
                each<ROWS>([&](auto i) INLINED { store_lanes(values[i], panel + (k + i) * width + index); });
            });
        });
    }

    /// From the order of planes to that of columns.
    void finish_row(int64_t r, const float* sums) const {
        float ordered[Source::UNIT];
        for (int64_t unit = 0; unit < count; unit += Source::UNIT) {
            each<Source::PLANES>([&](auto p) INLINED {
                for (int64_t lane = 0; lane < LANES; lane++) ordered[Source::column(p, lane)] = sums[unit + p * LANES + lane];
            });
            finish(given, r, begin + unit, count - unit < Source::UNIT ? count - unit : Source::UNIT, ordered);
        }
    }
};

template <typename Source, bool GROUPED>
struct ByColumns {
    const Product& given;

    /// The bits of a sum do not depend on how columns are divided.
    void multiply() const {
        const AlignedRows x(given);
        int64_t width = CACHED_SUMS / given.rows;
        const int64_t share = (given.out + threads() - 1) / threads();
        width = width > share ? share : width;
        width = width > MOST_COLUMNS ? MOST_COLUMNS : width;
        width = (width + COLUMN_UNIT - 1) / COLUMN_UNIT * COLUMN_UNIT;
        parallel((given.out + width - 1) / width, 1, [&](int64_t first, int64_t last) {
            Scratch<float> sums(given.rows * width);
            for (int64_t part = first; part < last; part++) {
                const int64_t begin = part * width, end = begin + width < given.out ? begin + width : given.out;
                Columns<Source, GROUPED> columns(given, begin, end);
                std::memset(sums.data, 0, sizeof(float) * static_cast<size_t>(given.rows * columns.padded()));
                columns.multiply(x, sums.data);
                for (int64_t r = 0; r < given.rows; r++) columns.finish_row(r, sums.data + r * columns.padded());
            }
        });
    }

    void restore(int64_t begin, int64_t end, float* panel) const {
        const int64_t units = (end - begin + COLUMN_UNIT - 1) / COLUMN_UNIT;
        parallel(units, 1, [&](int64_t first, int64_t last) {
            const int64_t from = begin + first * COLUMN_UNIT, to = begin + last * COLUMN_UNIT;
            Columns<Source, GROUPED>(given, from, to < end ? to : end).restore(panel + from - begin, units * COLUMN_UNIT);
        });
    }

    void finish(int64_t begin, int64_t end, const float* sums, int64_t stride) const {
        const Columns<Source, false> columns(given, begin, end);
        parallel(given.rows, 16, [&](int64_t first, int64_t last) {
            for (int64_t r = first; r < last; r++) columns.finish_row(r, sums + r * stride);
        });
    }
};

template <typename Source, typename Task>
void with_groups(const Product& given, const Task& task) {
    given.group ? task(ByColumns<Source, true>{given}) : task(ByColumns<Source, false>{given});
}

template <typename Task>
void by_columns(const Product& given, const Task& task) {
    if (given.stored == Stored::f32) task(ByColumns<Numbers<float>, false>{given});
    if (given.stored == Stored::bf16) task(ByColumns<Numbers<Bfloat16>, false>{given});
    if (given.stored == Stored::f16) task(ByColumns<Numbers<Half>, false>{given});
    if (given.stored == Stored::int8) with_groups<Numbers<int8_t>>(given, task);
    if (given.stored == Stored::int4) with_groups<Nibbles<false>>(given, task);
    if (given.stored == Stored::int4_awq) with_groups<Nibbles<true>>(given, task);
}

}  // namespace

void multiply_columns(const Product& given) {
    by_columns(given, [](const auto& product) { product.multiply(); });
}

void restore_columns(const Product& given, int64_t begin, int64_t end, float* panel) {
    by_columns(given, [&](const auto& product) { product.restore(begin, end, panel); });
}

void finish_columns(const Product& given, int64_t begin, int64_t end, const float* sums, int64_t stride) {
    by_columns(given, [&](const auto& product) { product.finish(begin, end, sums, stride); });
}

}  // namespace dlinfer::DLINFER_CPU_CAPABILITY
