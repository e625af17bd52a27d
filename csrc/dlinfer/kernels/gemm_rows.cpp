#include "gemm_operands.h"
#include "gemm_tile.h"
#include "parallel.h"

namespace dlinfer::DLINFER_CPU_CAPABILITY {
namespace {

// Results that are finished together; a multiple of every tile_columns and of LANES.
constexpr int64_t BLOCK = 16;

/// Weights as they are stored.
template <typename Element>
struct Weights {
    const Element* weight;
    int64_t stride, ahead;

    [[gnu::always_inline]] V operator()(int c, int64_t k) const {
        // What the next tile reads: the memory's own guesses stop at the end of each row.
        __builtin_prefetch(weight + c * stride + k + ahead);
        return load_lanes(weight + c * stride + k);
    }
    [[gnu::always_inline]] V operator()(int c, int64_t k, int64_t count) const { return load_some_lanes(weight + c * stride + k, count); }
};

template <typename Element, bool GROUPED>
struct RowProduct {
    const Product& given;
    const float* x;
    int64_t x_stride;

    const Element* weights(int64_t n) const { return static_cast<const Element*>(given.weight) + n * given.weight_stride; }

    /// Sums of ROWS rows and `count` columns from n on, to sums[row][column].
    template <int ROWS, int COLUMNS>
    [[gnu::noinline]] void tile(const float* rows, int64_t n, float (*sums)[BLOCK]) const {
        V acc[ROWS][COLUMNS] = {};
        const Weights<Element> read{weights(n), given.weight_stride, COLUMNS * given.weight_stride};
        if constexpr (GROUPED) {
            grouped(acc, rows, n, read);
        } else {
            add_products(acc, rows, x_stride, 0, given.in, read);
        }
        V flat[ROWS * COLUMNS];
        each<ROWS * COLUMNS>([&](auto i) INLINED { flat[i] = acc[i / COLUMNS][i % COLUMNS]; });
        float lanes[ROWS * COLUMNS + LANES];
        sum_lanes(flat, lanes);
        for (int r = 0; r < ROWS; r++) std::memcpy(sums[r], lanes + r * COLUMNS, sizeof(float) * COLUMNS);
    }

    template <int ROWS, int COLUMNS>
    [[gnu::always_inline]] void grouped(V (&acc)[ROWS][COLUMNS], const float* rows, int64_t n, const Weights<Element>& read) const {
        for (int64_t g = 0, begin = 0; begin < given.in; g++, begin += given.group) {
            V factor[COLUMNS], shift[COLUMNS];
            each<COLUMNS>([&](auto c) INLINED {
                factor[c] = splat(given.factor[g * given.out + n + c]);
                shift[c] = splat(given.shift ? given.shift[g * given.out + n + c] : 0.0f);
            });
            add_products(acc, rows, x_stride, begin, begin + given.group, [&](auto c, int64_t k, auto... count) INLINED {
                return (read(c, k, count...) + shift[c]) * factor[c];
            });
        }
    }

    /// Columns n to n + count (at most BLOCK), all tiles of COLUMNS of them, the rest one by one.
    template <int ROWS>
    void columns(const float* rows, int64_t n, int64_t count, float (*sums)[BLOCK]) const {
        constexpr int COLUMNS = tile_columns(ROWS);
        int64_t c = 0;
        for (; c + COLUMNS <= count; c += COLUMNS)
            tile<ROWS, COLUMNS>(rows, n + c, reinterpret_cast<float(*)[BLOCK]>(&sums[0][c]));
        for (; c < count; c++) tile<ROWS, 1>(rows, n + c, reinterpret_cast<float(*)[BLOCK]>(&sums[0][c]));
    }

    template <int ROWS>
    void some_rows(int64_t rows, int64_t row, int64_t n, int64_t count) const {
        if constexpr (ROWS > 1)
            if (rows < ROWS) return some_rows<ROWS - 1>(rows, row, n, count);
        float sums[ROWS][BLOCK] = {};
        columns<ROWS>(x + row * x_stride, n, count, sums);
        for (int r = 0; r < ROWS; r++) finish(given, row + r, n, count, sums[r]);
    }

    void run(int64_t begin, int64_t end) const {
        // Tiles of equal heights: 9 rows are 5 and 4, not 8 and 1.
        const int64_t tiles = (given.rows + TILE_ROWS - 1) / TILE_ROWS;
        for (int64_t n = begin; n < end; n += BLOCK) {
            const int64_t count = end - n < BLOCK ? end - n : BLOCK;
            for (int64_t t = 0, row = 0; t < tiles; t++) {
                const int64_t rows = (given.rows - row + tiles - t - 1) / (tiles - t);
                some_rows<TILE_ROWS>(rows, row, n, count);
                row += rows;
            }
        }
    }
};

template <typename Element, bool GROUPED>
void multiply(const Product& given) {
    const AlignedRows rows(given);
    const RowProduct<Element, GROUPED> product{given, rows.data, rows.stride};
    // A part is worth a thread from about 64 K weights on.
    const int64_t blocks = (given.out + BLOCK - 1) / BLOCK, grain = 65536 / (BLOCK * (given.in + 1)) + 1;
    parallel(blocks, grain, [&](int64_t begin, int64_t end) {
        product.run(begin * BLOCK, end * BLOCK < given.out ? end * BLOCK : given.out);
    });
}

/// Weights n of a panel, as floats: with factors and shifts of their groups, but not yet times the scale of their column.
template <typename Element>
void restore_row(const Product& given, int64_t n, float* to) {
    const auto* row = static_cast<const Element*>(given.weight) + n * given.weight_stride;
    const int64_t group = given.group ? given.group : given.in;
    for (int64_t g = 0, begin = 0; begin < given.in; g++, begin += group) {
        const float factor = given.group ? given.factor[g * given.out + n] : 1.0f;
        const float shift = given.group && given.shift ? given.shift[g * given.out + n] : 0.0f;
        in_vectors(group, [&](int64_t i, int64_t count) INLINED {
            store_upto((load_upto(row + begin + i, count) + shift) * factor, to + begin + i, count);
        });
    }
}

}  // namespace

void multiply_rows(const Product& given) {
    if (given.stored == Stored::f32) multiply<float, false>(given);
    if (given.stored == Stored::bf16) multiply<Bfloat16, false>(given);
    if (given.stored == Stored::f16) multiply<Half, false>(given);
    if (given.stored == Stored::int8) given.group ? multiply<int8_t, true>(given) : multiply<int8_t, false>(given);
}

void restore_rows(const Product& given, int64_t begin, int64_t end, float* panel) {
    parallel(end - begin, 16, [&](int64_t first, int64_t last) {
        for (int64_t n = first; n < last; n++) {
            float* row = panel + n * given.in;
            if (given.stored == Stored::bf16) restore_row<Bfloat16>(given, begin + n, row);
            if (given.stored == Stored::f16) restore_row<Half>(given, begin + n, row);
            if (given.stored == Stored::int8) restore_row<int8_t>(given, begin + n, row);
        }
    });
}

void finish_rows(const Product& given, int64_t begin, int64_t end, const float* sums, int64_t stride) {
    parallel(given.rows, 16, [&](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; r++) finish(given, r, begin, end - begin, sums + r * stride);
    });
}

}  // namespace dlinfer::DLINFER_CPU_CAPABILITY
