// The two 16-bit floating point formats as float, and back with rounding to nearest, ties to even.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace adaptor {

inline uint32_t float_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}
inline float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

inline float brain_value(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }

inline uint16_t brain_bits(float value) {
    const uint32_t bits = float_bits(value);
    if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float half_value(uint16_t bits) {
    const int exponent = (bits >> 10) & 0x1f;
    const int fraction = bits & 0x3ff;
    float magnitude;
    if (exponent == 0x1f)
        magnitude = float_of(0x7f800000u | (static_cast<uint32_t>(fraction) << 13));
    else if (exponent == 0)
        magnitude = std::ldexp(static_cast<float>(fraction), -24);
    else
        magnitude = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
    return (bits & 0x8000) ? -magnitude : magnitude;
}

inline uint16_t half_bits(float value) {
    const uint16_t sign = static_cast<uint16_t>((float_bits(value) >> 16) & 0x8000);
    const float magnitude = std::fabs(value);
    if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7e00);
    if (magnitude >= 65520.0f) return static_cast<uint16_t>(sign | 0x7c00);
    if (magnitude < 6.103515625e-05f)  // below 2^-14: multiples of 2^-24; adding 0.5 rounds by the float's own rule
        return static_cast<uint16_t>(sign | (float_bits(magnitude + 0.5f) - float_bits(0.5f)));
    const uint32_t bits = float_bits(magnitude);
    const uint32_t rounded = bits + 0xfff + ((bits >> 13) & 1);
    return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

}  // namespace adaptor
