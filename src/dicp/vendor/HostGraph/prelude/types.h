// Types, and what memory holds in another form than values have.
typedef unsigned char u8;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;
#define INLINE static inline __attribute__((always_inline))
#define INLINE_MEMBER inline __attribute__((always_inline))
#define ROWS static __attribute__((noinline))

struct Run {
    const Services* services;
    void* frame;
};

template <class To, class From>
INLINE To bits_as(From x) {
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To result;
    __builtin_memcpy(&result, &x, sizeof result);
    return result;
}

// Rounded to the nearest, ties to even; a NaN stays one.
INLINE u16 to_bf16(float x) {
    const u32 bits = bits_as<u32>(x);
    const u32 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (u16)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}
INLINE float from_bf16(u16 x) { return bits_as<float>((u32)x << 16); }
INLINE float rounded_bf16(float x) { return from_bf16(to_bf16(x)); }

// A product by a power of two puts the exponent right, denormals too; infinities and NaN do not scale.
INLINE float from_f16(u16 x) {
    const u32 magnitude = (u32)(x & 0x7fff) << 13;
    const float finite = bits_as<float>(magnitude) * 0x1p112f;
    const u32 bits = magnitude >= (0x7c00u << 13) ? (magnitude | 0x7f800000) : bits_as<u32>(finite);
    return bits_as<float>(bits | (u32)(x & 0x8000) << 16);
}
INLINE u16 to_f16(float x) {
    const u32 bits = bits_as<u32>(x), magnitude = bits & 0x7fffffff;
    // Normal numbers: the exponent is moved, the rest rounded. Denormal ones: the sum with 0.5 rounds at the right place.
    const u32 normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    const u32 denormal = bits_as<u32>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000;
    u32 result = magnitude < 0x38800000 ? denormal : normal;
    result = magnitude >= 0x477ff000 ? 0x7c00 : result;
    result = magnitude > 0x7f800000 ? 0x7e00 : result;
    return (u16)(result | (bits >> 16 & 0x8000));
}
INLINE float rounded_f16(float x) { return from_f16(to_f16(x)); }
