// Elementary functions. Those of float that models use are without branches, so that loops of them are vectorised.

// e^x to 1 ulp as p 2^n, x = n ln 2 + r. NaN passes through all of it.
struct PowerOfE { float p; i32 n; };
INLINE PowerOfE power_of_e(float bounded) {
    const float n = __builtin_rintf(bounded * 1.44269504088896341f);
    float r = __builtin_fmaf(n, -0.693145751953125f, bounded);
    r = __builtin_fmaf(n, -1.428606765330187e-06f, r);
    float p = 1.37805939e-3f;
    p = __builtin_fmaf(p, r, 8.37312452e-3f);
    p = __builtin_fmaf(p, r, 4.16695364e-2f);
    p = __builtin_fmaf(p, r, 1.66664720e-1f);
    p = __builtin_fmaf(p, r, 4.99999851e-1f);
    p = __builtin_fmaf(p, r, 1.f);
    p = __builtin_fmaf(p, r, 1.f);
    return {p, (i32)n};
}
// 2^n in two halves, so that small results are denormal and large ones infinite.
INLINE float d_exp(float x) {
    float bounded = x > 89.f ? 89.f : x;
    bounded = bounded < -104.f ? -104.f : bounded;
    const PowerOfE e = power_of_e(bounded);
    const i32 half = e.n >> 1;
    return e.p * bits_as<float>((u32)(half + 127) << 23) * bits_as<float>((u32)(e.n - half + 127) << 23);
}
// Of x <= 0, which others are made of.
INLINE float exp_negative(float x) {
    const PowerOfE e = power_of_e(x < -104.f ? -104.f : x);
    return e.p * bits_as<float>((u32)(e.n + 191) << 23) * 0x1p-64f;
}
INLINE double exp_negative(double x) { return __builtin_exp(x); }
INLINE double d_exp(double x) { return __builtin_exp(x); }
// From e^-|x|, so that small results are denormal, not 0. A step of Newton's method takes out what the sum and the quotient rounded.
template <class T> INLINE T sigmoid(T x) {
    const T e = exp_negative(-d_abs(x)), top = x < 0 ? e : (T)1;
    const T sum = 1 + e, lost = e - (sum - 1), inverse = 1 / sum, q = top * inverse;
    return d_fma(d_fma(-sum, q, top) - lost * q, inverse, q);
}
INLINE float d_sigmoid(float x) { return sigmoid(x); }
INLINE double d_sigmoid(double x) { return sigmoid(x); }
INLINE float d_tanh(float x) {
    const float a = __builtin_fabsf(x), s = x * x;
    float p = -5.70498872745e-3f;
    p = __builtin_fmaf(p, s, 2.06390887954e-2f);
    p = __builtin_fmaf(p, s, -5.37397155531e-2f);
    p = __builtin_fmaf(p, s, 1.33314422036e-1f);
    p = __builtin_fmaf(p, s, -3.33332819422e-1f);
    const float small = __builtin_fmaf(p * s, a, a);
    const float e = exp_negative(-2.f * a), large = 1.f - 2.f * e / (1.f + e);
    return __builtin_copysignf(a < 0.625f ? small : large, x);
}
INLINE double d_tanh(double x) { return __builtin_tanh(x); }
INLINE float d_erf(float x) {
    const float t = __builtin_fabsf(x), s = x * x;
    float r = __builtin_fmaf(-1.72853470e-5f, t, 3.83197126e-4f);
    const float u = __builtin_fmaf(-3.88396438e-3f, t, 2.42546219e-2f);
    r = __builtin_fmaf(r, s, u);
    r = __builtin_fmaf(r, t, -1.06777877e-1f);
    r = __builtin_fmaf(r, t, -6.34846687e-1f);
    r = __builtin_fmaf(r, t, -1.28717512e-1f);
    r = __builtin_fmaf(r, t, -t);
    const float large = __builtin_copysignf(t > 4.f ? 1.f : 1.f - exp_negative(r), x);
    float p = -5.96761703e-4f;
    p = __builtin_fmaf(p, s, 4.99119423e-3f);
    p = __builtin_fmaf(p, s, -2.67681349e-2f);
    p = __builtin_fmaf(p, s, 1.12819925e-1f);
    p = __builtin_fmaf(p, s, -3.76125336e-1f);
    p = __builtin_fmaf(p, s, 1.28379166e-1f);
    const float small = __builtin_fmaf(p, x, x);
    return t > 0.927734375f ? large : small;
}
INLINE double d_erf(double x) { return __builtin_erf(x); }

DICP_OF_LIBM(exp2)
DICP_OF_LIBM(expm1)
DICP_OF_LIBM(log)
DICP_OF_LIBM(log1p)
DICP_OF_LIBM(log2)
DICP_OF_LIBM(sin)
DICP_OF_LIBM(cos)
DICP_OF_LIBM(tan)
DICP_OF_LIBM(asin)
DICP_OF_LIBM(acos)
DICP_OF_LIBM(atan)
DICP_OF_LIBM(lgamma)
// By double: those of float are off by up to 2 ulp in the C library.
#define DICP_BY_DOUBLE(name) \
    INLINE float d_##name(float x) { return (float)__builtin_##name(x); } \
    INLINE double d_##name(double x) { return __builtin_##name(x); }
DICP_BY_DOUBLE(log10)
DICP_BY_DOUBLE(sinh)
DICP_BY_DOUBLE(cosh)
DICP_BY_DOUBLE(asinh)
DICP_BY_DOUBLE(acosh)
DICP_BY_DOUBLE(atanh)
DICP_BY_DOUBLE(erfc)
DICP_OF_LIBM_2(hypot, hypot)
DICP_OF_LIBM_2(atan2, atan2)
DICP_OF_LIBM_2(nextafter, nextafter)

// From below the Taylor series of its asymptotic form is of no use: the recurrence goes up to 10; the left half by reflection.
static double d_digamma(double x) {
    constexpr double pi = 3.14159265358979323846;
    if (x == 0) return __builtin_copysign(__builtin_inf(), -x);
    double result = 0;
    if (x < 0) {
        if (x == __builtin_trunc(x)) return __builtin_nan("");
        double fraction = x - __builtin_trunc(x);
        result = -pi / __builtin_tan(pi * fraction);
        x = 1 - x;
    }
    for (; x < 10; x += 1) result -= 1 / x;
    if (x == 10) return result + 2.25175258906672110764;
    const double z = 1 / (x * x);
    double series = 8.33333333333333333333e-2;
    series = -2.10927960927960927961e-2 + z * series;
    series = 7.57575757575757575758e-3 + z * series;
    series = -4.16666666666666666667e-3 + z * series;
    series = 3.96825396825396825397e-3 + z * series;
    series = -8.33333333333333333333e-3 + z * series;
    series = 8.33333333333333333333e-2 + z * series;
    return result + __builtin_log(x) - 0.5 / x - (x < 1e17 ? z * series : 0);
}
INLINE float d_digamma(float x) { return (float)d_digamma((double)x); }

// A guess within a few percent, then steps of Newton's method for erfc, whose relative error stays small in the tails.
static double d_erfinv(double x) {
    const double a = __builtin_fabs(x);
    if (!(a < 1)) return a == 1 ? __builtin_copysign(__builtin_inf(), x) : __builtin_nan("");
    if (a < 1e-9) return x * 0.88622692545275801365;
    const double rest = 1 - a, logarithm = __builtin_log(rest * (1 + a)), half = 4.33074670 + logarithm / 2;
    double y = __builtin_sqrt(__builtin_sqrt(half * half - logarithm / 0.147) - half);
    for (int step = 0; step < 4; ++step) {
        const double error = a < 0.5 ? __builtin_erf(y) - a : rest - __builtin_erfc(y);
        const double change = error / (1.12837916709551257390 * __builtin_exp(-y * y));
        y -= change / (1 + y * change);
    }
    return __builtin_copysign(y, x);
}
INLINE float d_erfinv(float x) { return (float)d_erfinv((double)x); }
