#include "elements.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>

#include "half.h"

namespace adaptor {
namespace {

enum class Kind { integer, real, boolean, complex };

Kind kind_of(int dtype) {
    if (dtype <= diopi_dtype_uint64) return Kind::integer;
    if (dtype == diopi_dtype_bool) return Kind::boolean;
    return dtype >= diopi_dtype_complex32 ? Kind::complex : Kind::real;
}

int part_of(int complex_dtype) {
    return complex_dtype == diopi_dtype_complex32   ? diopi_dtype_float16
           : complex_dtype == diopi_dtype_complex64 ? diopi_dtype_float32
                                                    : diopi_dtype_float64;
}

// Bits of the numbers that a dtype has without a gap: 24 for float32, 31 for int32.
int exact_bits(int dtype) {
    switch (dtype) {
        case diopi_dtype_bool: return 1;
        case diopi_dtype_bfloat16: return 8;
        case diopi_dtype_float16:
        case diopi_dtype_tfloat32: return 11;
        case diopi_dtype_float32: return 24;
        case diopi_dtype_float64: return 53;
        default: return static_cast<int>(element_size(dtype)) * 8 - (dtype % 2 == 0 ? 1 : 0);
    }
}

// The largest power of two below infinity.
int exponent_bits(int dtype) {
    switch (dtype) {
        case diopi_dtype_float16: return 5;
        case diopi_dtype_float64: return 11;
        default: return 8;
    }
}

struct Range {
    int64_t low, high;
};
Range range_of(int dtype) {
    if (dtype == diopi_dtype_bool) return {0, 1};
    const int bits = static_cast<int>(element_size(dtype)) * 8;
    if (bits == 64) return {dtype == diopi_dtype_uint64 ? 0 : std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
    if (dtype % 2 == 1) return {0, (int64_t{1} << bits) - 1};
    return {-(int64_t{1} << (bits - 1)), (int64_t{1} << (bits - 1)) - 1};
}

template <typename T>
T at(const void* from, int64_t i) {
    T value;
    std::memcpy(&value, static_cast<const unsigned char*>(from) + i * sizeof(T), sizeof(T));
    return value;
}
template <typename T>
void put(void* to, int64_t i, T value) {
    std::memcpy(static_cast<unsigned char*>(to) + i * sizeof(T), &value, sizeof(T));
}

// False for an uint64 that int64 cannot hold.
bool load_integer(const void* from, int dtype, int64_t i, int64_t& value) {
    switch (dtype) {
        case diopi_dtype_int8: value = at<int8_t>(from, i); break;
        case diopi_dtype_uint8: value = at<uint8_t>(from, i); break;
        case diopi_dtype_int16: value = at<int16_t>(from, i); break;
        case diopi_dtype_uint16: value = at<uint16_t>(from, i); break;
        case diopi_dtype_int32: value = at<int32_t>(from, i); break;
        case diopi_dtype_uint32: value = at<uint32_t>(from, i); break;
        case diopi_dtype_bool: value = at<uint8_t>(from, i) != 0; break;
        default: value = at<int64_t>(from, i);
    }
    return dtype != diopi_dtype_uint64 || value >= 0;
}

double load_real(const void* from, int dtype, int64_t i) {
    switch (dtype) {
        case diopi_dtype_float16: return half_value(at<uint16_t>(from, i));
        case diopi_dtype_bfloat16: return brain_value(at<uint16_t>(from, i));
        case diopi_dtype_float64: return at<double>(from, i);
        default: return at<float>(from, i);
    }
}

// Keeps the low bits: the caller has checked the range, or wants it so.
void store_integer(void* to, int dtype, int64_t i, int64_t value) {
    switch (element_size(dtype)) {
        case 1: put(to, i, static_cast<uint8_t>(value)); break;
        case 2: put(to, i, static_cast<uint16_t>(value)); break;
        case 4: put(to, i, static_cast<uint32_t>(value)); break;
        default: put(to, i, value);
    }
}

// Returns what was stored.
double store_real(void* to, int dtype, int64_t i, double value) {
    switch (dtype) {
        case diopi_dtype_float16: put(to, i, half_bits(static_cast<float>(value))); break;
        case diopi_dtype_bfloat16: put(to, i, brain_bits(static_cast<float>(value))); break;
        case diopi_dtype_float64: put(to, i, value); break;
        default: put(to, i, static_cast<float>(value));
    }
    return load_real(to, dtype, i);
}

template <typename Number>
std::string does_not_fit(int64_t i, Number value, int dtype) {
    std::ostringstream text;
    text.precision(17);
    text << "element " << i << " is " << value << ", which " << dtype_name(dtype) << " cannot hold";
    if (kind_of(dtype) == Kind::integer) text << " (" << range_of(dtype).low << " to " << range_of(dtype).high << ")";
    return text.str();
}

bool from_integer(const void* from, int from_dtype, void* to, int to_dtype, int64_t i, Purpose purpose, std::string& problem) {
    int64_t value = 0;
    bool fits = load_integer(from, from_dtype, i, value);
    if (kind_of(to_dtype) == Kind::real) {
        const double stored = store_real(to, to_dtype, i, static_cast<double>(value));
        // 2^63 is no int64; a rounded number may be it
        fits = fits && stored < 9223372036854775808.0 && stored >= -9223372036854775808.0 && static_cast<int64_t>(stored) == value;
    } else {
        const Range range = range_of(to_dtype);
        if (to_dtype == diopi_dtype_bool && purpose == Purpose::result) value = value != 0;
        fits = purpose == Purpose::result || (fits && value >= range.low && value <= range.high);
        store_integer(to, to_dtype, i, value);
    }
    if (!fits) problem = does_not_fit(i, value, to_dtype);
    return fits;
}

bool from_real(const void* from, int from_dtype, void* to, int to_dtype, int64_t i, Purpose purpose, std::string& problem) {
    const double value = load_real(from, from_dtype, i);
    bool fits = true;
    if (kind_of(to_dtype) == Kind::real) {
        const double stored = store_real(to, to_dtype, i, value);
        fits = purpose == Purpose::result || !std::isfinite(value) || std::isfinite(stored);
    } else {
        const Range range = range_of(to_dtype);
        const double beyond = element_size(to_dtype) == 8 ? 9223372036854775808.0 : static_cast<double>(range.high) + 1;
        fits = value >= static_cast<double>(range.low) && value < beyond && value == std::floor(value);  // false for NaN
        store_integer(to, to_dtype, i, fits ? static_cast<int64_t>(value) : 0);
    }
    if (!fits) problem = does_not_fit(i, value, to_dtype);
    return fits;
}

template <typename Visit>
void each_offset(const Tensor& geometry, const Visit& visit) {
    const int64_t dims = static_cast<int64_t>(geometry.shape.size());
    Numbers index(geometry.shape.size(), 0);
    int64_t offset = 0;
    for (int64_t element = 0; element < geometry.numel; ++element) {
        visit(element, offset);
        for (int64_t d = dims - 1; d >= 0; --d) {
            offset += geometry.stride[d];
            if (++index[d] < geometry.shape[d]) break;
            offset -= geometry.stride[d] * geometry.shape[d];
            index[d] = 0;
        }
    }
}

}  // namespace

bool convertible(int from, int to) {
    if (element_size(from) == 0 || element_size(to) == 0) return false;
    return (kind_of(from) == Kind::complex) == (kind_of(to) == Kind::complex);
}

bool always_fits(int from, int to) {
    if (from == to) return true;
    if (!convertible(from, to)) return false;
    if (kind_of(from) == Kind::complex) return always_fits(part_of(from), part_of(to));
    if (kind_of(from) == Kind::real)
        return kind_of(to) == Kind::real && exact_bits(from) <= exact_bits(to) && exponent_bits(from) <= exponent_bits(to);
    const bool is_signed = kind_of(from) == Kind::integer && from % 2 == 0;
    if (is_signed && kind_of(to) != Kind::real && (kind_of(to) == Kind::boolean || to % 2 == 1)) return false;
    return exact_bits(from) <= exact_bits(to);
}

bool always_accepted(int from, int to, Purpose purpose) {
    return always_fits(from, to) || (purpose == Purpose::result && convertible(from, to) && kind_of(from) == kind_of(to));
}

bool convert_elements(const void* from, int from_dtype, void* to, int to_dtype, int64_t count, Purpose purpose, std::string& problem) {
    if (from_dtype == to_dtype) {
        std::memcpy(to, from, static_cast<size_t>(count * element_size(from_dtype)));
        return true;
    }
    if (!convertible(from_dtype, to_dtype)) {
        problem = std::string("there is no conversion from ") + dtype_name(from_dtype) + " to " + dtype_name(to_dtype);
        return false;
    }
    if (kind_of(from_dtype) == Kind::complex)
        return convert_elements(from, part_of(from_dtype), to, part_of(to_dtype), 2 * count, purpose, problem);
    const auto convert = kind_of(from_dtype) == Kind::real ? from_real : from_integer;
    for (int64_t i = 0; i < count; ++i)
        if (!convert(from, from_dtype, to, to_dtype, i, purpose, problem)) return false;
    return true;
}

bool number_fits(const diopiScalar_t& number, int dtype, std::string& problem) {
    std::ostringstream text;
    text.precision(17);
    if (number.stype <= diopi_dtype_uint64) {
        const Range range = range_of(dtype);
        if (kind_of(dtype) != Kind::integer || (number.ival >= range.low && number.ival <= range.high)) return true;
        text << number.ival;
    } else {
        unsigned char stored[8];
        if (kind_of(dtype) != Kind::real || !std::isfinite(number.fval)) return true;
        if (std::isfinite(store_real(stored, dtype, 0, number.fval))) return true;
        text << number.fval;
    }
    problem = "the number " + text.str() + " does not fit into " + dtype_name(dtype) +
              ", to which a rule converts the tensors of this call";
    return false;
}

void gather(const unsigned char* memory, const Tensor& geometry, unsigned char* elements) {
    const auto size = static_cast<size_t>(element_size(geometry.dtype));
    if (is_contiguous(geometry)) {
        std::memcpy(elements, memory, size * static_cast<size_t>(geometry.numel));
        return;
    }
    each_offset(geometry, [&](int64_t i, int64_t offset) { std::memcpy(elements + i * size, memory + offset * size, size); });
}

void scatter(const unsigned char* elements, const Tensor& geometry, unsigned char* memory) {
    const auto size = static_cast<size_t>(element_size(geometry.dtype));
    each_offset(geometry, [&](int64_t i, int64_t offset) { std::memcpy(memory + offset * size, elements + i * size, size); });
}

}  // namespace adaptor
