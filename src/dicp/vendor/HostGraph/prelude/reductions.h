// What `Reduce` and `Scan` accumulate.

// Floats as integers of the same order: those have a maximum that a vector of them can have. NaN is beyond all.
INLINE i32 order_of(float x) { const i32 b = bits_as<i32>(x); return b ^ (b >> 31 & 0x7fffffff); }
INLINE i64 order_of(double x) { const i64 b = bits_as<i64>(x); return b ^ (b >> 63 & 0x7fffffffffffffff); }
INLINE float of_order(i32 k) { return bits_as<float>(k ^ (k >> 31 & 0x7fffffff)); }
INLINE double of_order(i64 k) { return bits_as<double>(k ^ (k >> 63 & 0x7fffffffffffffff)); }
INLINE i32 high_order(float x) { return x != x ? 0x7fffffff : order_of(x); }
INLINE i64 high_order(double x) { return x != x ? 0x7fffffffffffffff : order_of(x); }
INLINE i32 low_order(float x) { return x != x ? -0x7fffffff - 1 : order_of(x); }
INLINE i64 low_order(double x) { return x != x ? -0x7fffffffffffffff - 1 : order_of(x); }

// The extreme and where it is: NaN before all, of equal ones the first.
template <class T, bool highest>
struct Extreme {
    T value;
    i64 position;
    bool none = true;
    INLINE_MEMBER void add(T x, i64 at) {
        const bool beyond = highest ? x > value : x < value;
        const bool nan = x != x, had = value != value;
        const bool equal = x == value || (nan && had);
        if (none || (nan && !had) || (!had && beyond) || (equal && at < position)) value = x, position = at;
        none = false;
    }
    void block(const T* x, const i64* at, i64 count) {
        for (i64 i = 0; i < count; ++i) add(x[i], at[i]);
    }
};

// Mean and squared deviations: of a block in two passes, then joined with those of the blocks before it.
template <class T>
struct Welford {
    T mean = 0, squares = 0;
    i64 count = 0;
    void block(const T* x, i64 size) {
        if (size <= 0) return;
        T sum = 0, deviation = 0;
#pragma omp simd reduction(+ : sum)
        for (i64 i = 0; i < size; ++i) sum += x[i];
        const T own = sum / (T)size;
        T rest = 0;
#pragma omp simd reduction(+ : deviation, rest)
        for (i64 i = 0; i < size; ++i) {
            const T d = x[i] - own;
            rest += d;
            deviation += d * d;
        }
        join(own + rest / (T)size, deviation - rest * rest / (T)size, size);
    }
    INLINE_MEMBER void join(T other, T deviation, i64 size) {
        const T both = (T)(count + size), difference = other - mean;
        const T share = (T)size / both;
        squares += deviation + difference * difference * ((T)count * share);
        mean = count ? mean + difference * share : other;
        count += size;
    }
};

// The maximum, and the sum of exp(x - maximum).
template <class T>
struct LogSumExp {
    T highest = -(T)__builtin_inf(), sum = 0;
    static T shift(T x) { return d_isinf(x) ? 0 : x; }
    void block(const T* x, i64 size) {
        auto key = high_order(-(T)__builtin_inf());
#pragma omp simd reduction(max : key)
        for (i64 i = 0; i < size; ++i) {
            const auto k = high_order(x[i]);
            key = key > k ? key : k;
        }
        const T most = d_maximum(of_order(key), highest), s = shift(most);
        T part = 0;
#pragma omp simd reduction(+ : part)
        for (i64 i = 0; i < size; ++i) part += d_exp(x[i] - s);
        if (size > 0) sum = (sum == 0 ? 0 : sum * d_exp(shift(highest) - s)) + part, highest = most;
    }
};

// Running: the last of equal ones, and a NaN stays.
template <class T, bool highest>
struct RunningExtreme {
    T value;
    i64 position = 0;
    bool none = true;
    INLINE_MEMBER void add(T x, i64 at) {
        const bool nan = x != x, had = !none && value != value;
        if (none || nan || (!had && (highest ? x >= value : x <= value))) value = x, position = at;
        none = false;
    }
};
template <class T>
struct RunningLogSumExp {
    double highest = -__builtin_inf(), sum = 0;
    INLINE_MEMBER T add(T x) {
        const double y = x;
        if (y == -__builtin_inf()) return value();
        if (y > highest || y != y) {
            sum = (sum == 0 ? 0 : sum * __builtin_exp(highest - y)) + 1;
            highest = y;
        } else {
            sum += y == highest ? 1 : __builtin_exp(y - highest);
        }
        return value();
    }
    INLINE_MEMBER T value() const {
        return (T)(__builtin_isinf(highest) ? highest : highest + __builtin_log(sum));
    }
};

// The same for a vector of rows, column by column.
template <class T> INLINE void lane_welford(T& mean, T& squares, T x, T inverse_count) {
    const T before = x - mean;
    mean += before * inverse_count;
    squares += before * (x - mean);
}
template <class T> INLINE void lane_logsumexp(T& highest, T& sum, T x) {
    const T most = d_maximum(highest, x), shift = d_isinf(most) ? 0 : most, before = d_isinf(highest) ? 0 : highest;
    sum = (sum == 0 ? 0 : sum * d_exp(before - shift)) + d_exp(x - shift);
    highest = most;
}
