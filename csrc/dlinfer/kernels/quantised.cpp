#include "quantised.h"

#include "gemm_operands.h"
#include "gemm_tile.h"
#include "parallel.h"

namespace dlinfer::DLINFER_CPU_CAPABILITY {
namespace {

constexpr int64_t BLOCK = 16;  // columns whose weights stay in the first cache while all rows pass

/// Sums of integers of one row and some columns from n on become results.
void finish(const IntegerProduct& given, int64_t row, int64_t n, int64_t count, const int32_t* sums) {
    float numbers[BLOCK];
    for (int64_t i = 0; i < count; i++) {
        const int64_t added = given.whole_bias ? given.whole_bias[n + i] : 0;
        numbers[i] = static_cast<float>(sums[i] + added);
    }
    in_vectors(count, [&](int64_t i, int64_t part) INLINED {
        V value = load_upto(numbers + i, part) * given.row_scale[given.row_scales ? row : 0];
        value *= given.column_scales ? load_upto(given.column_scale + n + i, part) : splat(*given.column_scale);
        if (given.bias) value += load_upto(given.bias + n + i, part);
        store_result(value, given.result, given.result_dtype, row * given.out + n + i, part);
    });
}

#if defined(__AVX512VNNI__)

// The instruction multiplies unsigned with signed numbers: a is raised by 128, and 128 times the sum of b subtracted.
constexpr int64_t BYTES = 64;

inline VI read_some(const int8_t* from, int64_t count) {
    int8_t copy[BYTES] = {};
    std::memcpy(copy, from, static_cast<size_t>(count));
    return read<VI>(copy);
}
inline VI dot(VI sums, VI raised, VI numbers) {
    return bits_as<VI>(_mm512_dpbusd_epi32(bits_as<__m512i>(sums), bits_as<__m512i>(raised), bits_as<__m512i>(numbers)));
}

struct Prepared {
    int64_t stride;
    Scratch<int8_t> data;

    /// Behind the end of a row are zeros in b; a may be anything there.
    explicit Prepared(const IntegerProduct& given) : stride((given.in + BYTES - 1) / BYTES * BYTES), data(given.rows * stride) {
        for (int64_t r = 0; r < given.rows; r++)
            for (int64_t k = 0; k < stride; k++)
                data.data[r * stride + k] = static_cast<int8_t>(k < given.in ? given.a[r * given.a_stride + k] ^ -128 : 0);
    }
};

template <int ROWS, int COLUMNS>
[[gnu::noinline]] void tile(const IntegerProduct& given, const int8_t* a, int64_t stride, int64_t n, int32_t (*sums)[BLOCK]) {
    VI acc[ROWS][COLUMNS] = {}, totals[COLUMNS] = {};
    const VI ones = VI{} + 0x01010101;
    const int8_t* b = given.b + n * given.b_stride;
    const auto step = [&](int64_t k, auto number) INLINED {
        VI numbers[COLUMNS];
        each<COLUMNS>([&](auto c) INLINED {
            numbers[c] = number(b + c * given.b_stride + k);
            totals[c] = dot(totals[c], ones, numbers[c]);
        });
        each<ROWS>([&](auto r) INLINED {
            const VI raised = read<VI>(a + r * stride + k);
            each<COLUMNS>([&](auto c) INLINED { acc[r][c] = dot(acc[r][c], raised, numbers[c]); });
        });
    };
    int64_t k = 0;
    for (; k + BYTES <= given.in; k += BYTES) {
        step(k, [&](const int8_t* from) INLINED {
            __builtin_prefetch(from + COLUMNS * given.b_stride);
            return read<VI>(from);
        });
    }
    if (k < given.in) step(k, [&](const int8_t* from) INLINED { return read_some(from, given.in - k); });
    VI flat[ROWS * COLUMNS];
    each<ROWS * COLUMNS>([&](auto i) INLINED { flat[i] = acc[i / COLUMNS][i % COLUMNS] - 128 * totals[i % COLUMNS]; });
    int32_t lanes[ROWS * COLUMNS + LANES];
    sum_lanes(flat, lanes);
    for (int r = 0; r < ROWS; r++) std::memcpy(sums[r], lanes + r * COLUMNS, sizeof(int32_t) * COLUMNS);
}

template <int ROWS>
void some_rows(const IntegerProduct& given, const Prepared& a, int64_t rows, int64_t row, int64_t n, int64_t count) {
    if constexpr (ROWS > 1)
        if (rows < ROWS) return some_rows<ROWS - 1>(given, a, rows, row, n, count);
    constexpr int COLUMNS = tile_columns(ROWS);
    int32_t sums[ROWS][BLOCK] = {};
    int64_t c = 0;
    const int8_t* first = a.data.data + row * a.stride;
    for (; c + COLUMNS <= count; c += COLUMNS)
        tile<ROWS, COLUMNS>(given, first, a.stride, n + c, reinterpret_cast<int32_t(*)[BLOCK]>(&sums[0][c]));
    for (; c < count; c++) tile<ROWS, 1>(given, first, a.stride, n + c, reinterpret_cast<int32_t(*)[BLOCK]>(&sums[0][c]));
    for (int r = 0; r < ROWS; r++) finish(given, row + r, n, count, sums[r]);
}

void multiply_block(const IntegerProduct& given, const Prepared& a, int64_t n, int64_t count) {
    const int64_t tiles = (given.rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int64_t t = 0, row = 0; t < tiles; t++) {
        const int64_t rows = (given.rows - row + tiles - t - 1) / (tiles - t);
        some_rows<TILE_ROWS>(given, a, rows, row, n, count);
        row += rows;
    }
}

#else

/// Numbers of 16 bits: every machine multiplies and adds these in pairs.
struct Prepared {
    Scratch<int16_t> data;

    explicit Prepared(const IntegerProduct& given) : data(given.rows * given.in) {
        for (int64_t r = 0; r < given.rows; r++)
            for (int64_t k = 0; k < given.in; k++) data.data[r * given.in + k] = given.a[r * given.a_stride + k];
    }
};

void multiply_block(const IntegerProduct& given, const Prepared& a, int64_t n, int64_t count) {
    Scratch<int16_t> upcast(BLOCK * given.in);
    for (int64_t c = 0; c < count; c++)
        for (int64_t k = 0; k < given.in; k++) upcast.data[c * given.in + k] = given.b[(n + c) * given.b_stride + k];
    for (int64_t r = 0; r < given.rows; r++) {
        int32_t sums[BLOCK];
        for (int64_t c = 0; c < count; c++) {
            const int16_t *one = a.data.data + r * given.in, *other = upcast.data + c * given.in;
            int32_t sum = 0;
            for (int64_t k = 0; k < given.in; k++) sum += one[k] * other[k];
            sums[c] = sum;
        }
        finish(given, r, n, count, sums);
    }
}

#endif

template <typename Element>
void quantise_numbers(const FixedQuantisation& given, int64_t begin, int64_t end) {
    const auto* x = static_cast<const Element*>(given.x);
    in_vectors(end - begin, [&](int64_t i, int64_t count) INLINED {
        // Far beyond the range, but small enough to be rounded below.
        constexpr float FAR = 1 << 20;
        V value = load_upto(x + begin + i, count) / given.scale;
        value = value > FAR ? splat(FAR) : value < -FAR ? splat(-FAR) : value;
        value = rounded(rounded(value) + given.offset);
        value = value > 127.0f ? splat(127) : value < -128.0f ? splat(-128) : value;
        const V8 bytes = __builtin_convertvector(__builtin_convertvector(value, VI), V8);
        std::memcpy(given.result + begin + i, &bytes, static_cast<size_t>(count));
    });
}

}  // namespace

void multiply_integers(const IntegerProduct& given) {
    const Prepared a(given);
    const int64_t blocks = (given.out + BLOCK - 1) / BLOCK, grain = 131072 / (BLOCK * (given.in + 1)) + 1;
    parallel(blocks, grain, [&](int64_t begin, int64_t end) {
        for (int64_t block = begin; block < end; block++) {
            const int64_t n = block * BLOCK;
            multiply_block(given, a, n, given.out - n < BLOCK ? given.out - n : BLOCK);
        }
    });
}

void quantise_fixed(const FixedQuantisation& given) {
    parallel(given.count, 16384, [&](int64_t begin, int64_t end) {
        if (given.dtype == Dtype::f32) quantise_numbers<float>(given, begin, end);
        if (given.dtype == Dtype::bf16) quantise_numbers<Bfloat16>(given, begin, end);
        if (given.dtype == Dtype::f16) quantise_numbers<Half>(given, begin, end);
    });
}

}  // namespace dlinfer::DLINFER_CPU_CAPABILITY
