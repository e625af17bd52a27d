// Primitives that are arithmetic, comparisons and bits. Integers wrap.
INLINE float d_abs(float x) { return __builtin_fabsf(x); }
INLINE double d_abs(double x) { return __builtin_fabs(x); }
template <class T> INLINE T d_abs(T x) { return (T)(x < 0 ? -x : x); }
template <class T> INLINE T d_sign(T x) { return (T)((x > 0) - (x < 0)); }
template <class T> INLINE T d_minimum(T a, T b) { const T m = b < a ? b : a; return a != a ? a : b != b ? b : m; }
template <class T> INLINE T d_maximum(T a, T b) { const T m = a < b ? b : a; return a != a ? a : b != b ? b : m; }
template <class T> INLINE T d_fmin(T a, T b) { return a < b ? a : b != b ? a : b; }
template <class T> INLINE T d_fmax(T a, T b) { return a > b ? a : b != b ? a : b; }
INLINE float d_copysign(float a, float b) { return __builtin_copysignf(a, b); }
INLINE double d_copysign(double a, double b) { return __builtin_copysign(a, b); }
INLINE float d_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
INLINE double d_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
template <class T> INLINE bool d_isnan(T x) { return x != x; }
template <class T> INLINE bool d_isinf(T x) { return d_abs(x) == (T)__builtin_inf(); }
template <class T> INLINE bool d_isfinite(T x) { return d_abs(x) < (T)__builtin_inf(); }
INLINE bool d_signbit(float x) { return bits_as<i32>(x) < 0; }
INLINE bool d_signbit(double x) { return bits_as<i64>(x) < 0; }

INLINE float d_sqrt(float x) { return __builtin_sqrtf(x); }
INLINE double d_sqrt(double x) { return __builtin_sqrt(x); }
template <class T> INLINE T d_rsqrt(T x) { return 1 / d_sqrt(x); }
template <class T> INLINE T d_reciprocal(T x) { return 1 / x; }
#define DICP_OF_LIBM(name) \
    INLINE float d_##name(float x) { return __builtin_##name##f(x); } \
    INLINE double d_##name(double x) { return __builtin_##name(x); }
#define DICP_OF_LIBM_2(name, function) \
    INLINE float d_##name(float a, float b) { return __builtin_##function##f(a, b); } \
    INLINE double d_##name(double a, double b) { return __builtin_##function(a, b); }
DICP_OF_LIBM(floor)
DICP_OF_LIBM(ceil)
DICP_OF_LIBM(trunc)
INLINE float d_round(float x) { return __builtin_rintf(x); }
INLINE double d_round(double x) { return __builtin_rint(x); }

DICP_OF_LIBM_2(fmod, fmod)
template <class T> INLINE T float_remainder(T a, T b) {
    const T rest = d_fmod(a, b);
    return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}
INLINE float d_remainder(float a, float b) { return float_remainder(a, b); }
INLINE double d_remainder(double a, double b) { return float_remainder(a, b); }

// By zero: 0 here; the kernel notes it, and the run ends with an error. -1 is no division: the lowest number has no negative.
template <class T> INLINE T d_trunc_div(T a, T b) {
    const T divisor = b == 0 || b == (T)-1 ? (T)1 : b;
    return b == 0 ? (T)0 : (T)-1 < 0 && b == (T)-1 ? (T)-a : (T)(a / divisor);
}
template <class T> INLINE T d_fmod(T a, T b) {
    const T divisor = b == 0 || ((T)-1 < 0 && b == (T)-1) ? (T)1 : b;
    return (T)(a % divisor);
}
template <class T> INLINE T d_remainder(T a, T b) {
    const T rest = d_fmod(a, b);
    return (T)(rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest);
}
template <class T> INLINE T d_floor_div(T a, T b) {
    const T whole = d_trunc_div(a, b), rest = d_fmod(a, b);
    return (T)(whole - (rest != 0 && (b < 0) != (rest < 0)));
}
template <class T> INLINE T d_gcd(T a, T b) {
    a = d_abs(a), b = d_abs(b);
    while (a != 0) {
        const T rest = d_fmod(b, a);
        b = a, a = rest;
    }
    return b;
}
template <class T> INLINE T d_shift_left(T a, T b) {
    constexpr int width = 8 * sizeof(T);
    return b < 0 || b >= (T)width ? (T)0 : (T)((u64)a << (b & (width - 1)));
}
template <class T> INLINE T d_shift_right(T a, T b) {
    constexpr int most = 8 * sizeof(T) - ((T)-1 < 0);
    return (T)(a >> (b < 0 || b >= (T)most ? most : (int)b));
}
template <class T> INLINE T d_bitwise_not(T x) { return (T)~x; }
INLINE bool d_bitwise_not(bool x) { return !x; }
DICP_OF_LIBM_2(pow, pow)
template <class T> INLINE T d_pow(T base, T exponent) {
    if ((T)-1 < 0 && exponent < 0) return base == 1 ? 1 : base == (T)-1 ? ((exponent & 1) ? (T)-1 : (T)1) : (T)0;
    T result = 1;
    for (; exponent != 0; exponent = (T)(exponent >> 1), base = (T)(base * base))
        if (exponent & 1) result = (T)(result * base);
    return result;
}
