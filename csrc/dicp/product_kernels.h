// Kernels of products for one instruction set. Included once for each, inside a namespace, with
//   DICP_LANES  floats of a vector, DICP_TILE_ROWS x DICP_TILE_VECTORS  vectors of sums that registers hold.
// Sums of an element are formed in an order that neither threads nor the other elements change.

constexpr int kLanes = DICP_LANES, kTileRows = DICP_TILE_ROWS, kTileVectors = DICP_TILE_VECTORS;
constexpr int kPanel = kLanes * kTileVectors;

typedef float Vector __attribute__((vector_size(4 * DICP_LANES)));
typedef float LooseVector __attribute__((vector_size(4 * DICP_LANES), aligned(4), may_alias));
typedef int32_t Lanes __attribute__((vector_size(4 * DICP_LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * DICP_LANES)));
typedef uint16_t LooseHalves __attribute__((vector_size(2 * DICP_LANES), aligned(2), may_alias));

inline Vector load(const float* at) { return *reinterpret_cast<const LooseVector*>(at); }
inline Vector load(const uint16_t* at) {
    return reinterpret_cast<Vector>(__builtin_convertvector(*reinterpret_cast<const LooseHalves*>(at), Words) << 16);
}
inline void store(float* at, Vector value) { *reinterpret_cast<LooseVector*>(at) = value; }
inline float number(float x) { return x; }
inline float number(uint16_t x) {
    const uint32_t bits = static_cast<uint32_t>(x) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}
inline void put(float* at, float value) { *at = value; }
inline void put(uint16_t* at, float value) { *at = c10::detail::round_to_nearest_even(value); }

// --- many rows: tiles of sums over panels of B ---

/// out[rows, width] (+)= a[rows, depth] * panel[depth, vectors * kLanes]
template <int rows, int vectors>
inline void tile(const Tile& t) {
    Vector sums[rows][vectors] = {};
    const int64_t step = t.panel_step * vectors * kLanes;
    for (int64_t tap = 0; tap < t.taps; ++tap) {
        const float* a = t.a + (t.a_taps ? t.a_taps[tap] : 0);
        const float* b = t.panel + tap * t.panel_tap * vectors * kLanes;
        for (int64_t p = 0; p < t.depth; ++p, a += t.a_column, b += step) {
            Vector right[vectors];
#pragma GCC unroll 8
            for (int c = 0; c < vectors; ++c) right[c] = load(b + c * kLanes);
#pragma GCC unroll 16
            for (int r = 0; r < rows; ++r) {
                const float left = a[r * t.a_row];
#pragma GCC unroll 8
                for (int c = 0; c < vectors; ++c) sums[r][c] += left * right[c];
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < vectors; ++c) {
            float* at = t.out + r * t.out_row + c * kLanes;
            const float* more = t.add ? at : t.bias ? t.bias + c * kLanes : nullptr;
            const int64_t width = t.width - c * kLanes;
            if (width >= kLanes) {
                store(at, more ? load(more) + sums[r][c] : sums[r][c]);
            } else {
                for (int64_t i = 0; i < width; ++i) at[i] = more ? more[i] + sums[r][c][i] : sums[r][c][i];
            }
        }
}

template <int vectors, int rows = kTileRows>
inline void tile_of(const Tile& t, int64_t given) {
    if (given == rows)
        tile<rows, vectors>(t);
    else if constexpr (rows > 1)
        tile_of<vectors, rows - 1>(t, given);
}

/// All rows of a panel.
template <int vectors>
void strip(Tile t, int64_t rows) {
    for (; rows > 0; rows -= kTileRows, t.a += kTileRows * t.a_row, t.out += kTileRows * t.out_row) tile_of<vectors>(t, std::min<int64_t>(rows, kTileRows));
}

void panel_product(const Tile& t, int64_t rows) {
    const auto vectors = (std::min<int64_t>(t.width, kPanel) + kLanes - 1) / kLanes;
    if (vectors == 1)
        strip<1>(t, rows);
    else if (vectors == 2 || kTileVectors == 2)
        strip<2>(t, rows);
    else
        strip<kTileVectors>(t, rows);
}

// --- packing ---

template <int step>
inline void exchange(Vector& a, Vector& b) {
    Lanes low, high;
    for (int lane = 0; lane < kLanes; ++lane) {
        const bool second = lane / step % 2;
        low[lane] = second ? kLanes + lane - step : lane;
        high[lane] = second ? kLanes + lane : lane + step;
    }
    const Vector first = __builtin_shuffle(a, b, low);
    b = __builtin_shuffle(a, b, high);
    a = first;
}

template <int step>
inline void exchange_all(Vector (&rows)[kLanes]) {
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r)
        if (r / step % 2 == 0) exchange<step>(rows[r], rows[r + step]);
    if constexpr (step > 1) exchange_all<step / 2>(rows);
}

/// to[p * stride + lane] = from[lane * row + p] for p < kLanes
inline void transpose(const float* from, int64_t row, float* to, int64_t stride) {
    Vector rows[kLanes];
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) rows[r] = load(from + r * row);
    exchange_all<kLanes / 2>(rows);
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) store(to + r * stride, rows[r]);
}

/// panel[p, c] = b[p, c], columns padded to whole vectors.
void pack(const float* b, int64_t b_row, int64_t b_column, int64_t depth, int64_t width, float* panel) {
    const int64_t padded = (width + kLanes - 1) / kLanes * kLanes;
    for (int64_t c = 0; c < padded; c += kLanes) {
        const int64_t columns = std::min<int64_t>(width - c, kLanes);
        const float* from = b + c * b_column;
        float* to = panel + c;
        int64_t p = 0;
        if (columns == kLanes && b_column == 1) {
            for (; p < depth; ++p) store(to + p * padded, load(from + p * b_row));
        } else if (columns == kLanes && b_row == 1) {
            for (; p + kLanes <= depth; p += kLanes) transpose(from + p, b_column, to + p * padded, padded);
        }
        for (; p < depth; ++p)
            for (int64_t i = 0; i < kLanes; ++i) to[p * padded + i] = i < columns ? from[p * b_row + i * b_column] : 0.f;
    }
}

// --- few rows: each of them and each column of B is a dot product; B, neighbours in a column one behind the other, is read once ---

template <int rows, int columns, class T>
inline void dots(int64_t depth, const T* a, int64_t a_row, const T* b, int64_t b_column, const T* bias, T* out, int64_t out_row) {
    Vector sums[rows][columns] = {};
    int64_t p = 0;
    for (; p + kLanes <= depth; p += kLanes) {
        Vector left[rows];
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) left[r] = load(a + r * a_row + p);
#pragma GCC unroll 8
        for (int c = 0; c < columns; ++c) {
            const T* at = b + c * b_column + p;
            const Vector right = load(at);
            __builtin_prefetch(at + columns * b_column);
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) sums[r][c] += left[r] * right;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < columns; ++c) {
            const Vector& all = sums[r][c];
            float parts[kLanes];
            std::memcpy(parts, &all, sizeof parts);
#pragma GCC unroll 8
            for (int half = kLanes / 2; half > 0; half /= 2)
                for (int lane = 0; lane < half; ++lane) parts[lane] += parts[lane + half];
            float sum = parts[0];
            for (int64_t rest = p; rest < depth; ++rest) sum += number(a[r * a_row + rest]) * number(b[c * b_column + rest]);
            put(out + r * out_row + c, bias ? sum + number(bias[c]) : sum);
        }
}

template <int rows, class T>
void few_rows_of(const FewRows<T>& f, int64_t begin, int64_t end) {
    constexpr int columns = std::min(8, kTileRows * kTileVectors / rows);
    int64_t c = begin;
    for (; c + columns <= end; c += columns)
        dots<rows, columns>(f.depth, f.a, f.a_row, f.b + c * f.b_column, f.b_column, f.bias ? f.bias + c : nullptr, f.out + c, f.out_row);
    for (; c < end; ++c) dots<rows, 1>(f.depth, f.a, f.a_row, f.b + c * f.b_column, f.b_column, f.bias ? f.bias + c : nullptr, f.out + c, f.out_row);
}

/// 1 to kFewRows rows.
template <class T, int rows = kFewRows>
void few_rows(const FewRows<T>& f, int64_t given, int64_t begin, int64_t end) {
    if (given == rows)
        few_rows_of<rows>(f, begin, end);
    else if constexpr (rows > 1)
        few_rows<T, rows - 1>(f, given, begin, end);
}

constexpr Kernels kKernels{kLanes, kPanel, panel_product, pack, few_rows<float>, few_rows<uint16_t>};
