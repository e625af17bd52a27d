// The short way for small tensors: a plain loop over the operands' memory, straight from the handles.
//
// Building ATen tensors and an iterator costs more than the work itself below some thousand elements. The short way is
// taken where all operands are float32, row-major, of one shape, and only by operators whose result is a single
// correctly rounded operation (or none): those give the same bits whatever instructions compute them. An operator that
// could be fused (add with alpha, addcmul, lerp) or is approximated (exp, gelu, sqrt by a vector library) must not be
// here, nor one whose scalar and vector forms treat signed zeros differently (maximum).
#pragma once
#include <cmath>
#include <cstring>
#include <optional>
#include <tuple>
#include <type_traits>

#include "device_memory.h"
#include "kernel.h"

namespace dipu_vendor {

constexpr int64_t kFlatLimit = 4096;

template <class T>
constexpr diopiDtype_t flat_dtype() {
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, bool>);
    return std::is_same_v<T, float> ? diopi_dtype_float32 : diopi_dtype_bool;
}

// The elements of a handle if they are a small row-major block of T, else nullptr. `shape` is the shape to have; one with
// len < 0 is filled in from this handle.
template <class T>
T* flat_data(diopiConstTensorHandle_t handle, diopiSize_t& shape, int64_t& numel) {
    diopiDtype_t dtype;
    diopiSize_t size, stride;
    if (!handle || diopiGetTensorDtype(handle, &dtype) != diopiSuccess) return nullptr;
    if (dtype != flat_dtype<T>()) return nullptr;
    diopiGetTensorShape(handle, &size);
    diopiGetTensorStride(handle, &stride);
    if (shape.len < 0) shape = size;
    if (size.len != shape.len) return nullptr;
    numel = 1;
    for (int64_t i = size.len - 1; i >= 0; --i) {
        if (size.data[i] != shape.data[i] || (size.data[i] != 1 && stride.data[i] != numel)) return nullptr;
        numel *= size.data[i];
    }
    if (numel == 0 || numel > kFlatLimit) return nullptr;
    const void* data = nullptr;
    diopiGetTensorDataConst(handle, &data);
    return static_cast<T*>(untag(data));
}

// The same memory (in place) or none of it; what overlaps in part is left to ATen, which knows whether it is an error.
template <class Out>
bool overlaps_in_part(const Out* out, const float* in, int64_t numel) {
    const auto *out_begin = reinterpret_cast<const char*>(out), *in_begin = reinterpret_cast<const char*>(in);
    if (std::is_same_v<Out, float> && out_begin == in_begin) return false;
    return out_begin < in_begin + numel * sizeof(float) && in_begin < out_begin + numel * sizeof(Out);
}

// Blocks of fixed length through a local array: vectorised without the compiler having to prove that nothing overlaps.
template <class Out, class F, class... In>
void flat_loop(F f, int64_t numel, Out* out, const In*... in) {
    constexpr int64_t kBlock = 16;
    int64_t i = 0;
    for (; i + kBlock <= numel; i += kBlock) {
        Out block[kBlock];
        for (int64_t k = 0; k < kBlock; ++k) block[k] = f(in[i + k]...);
        std::memcpy(out + i, block, sizeof(block));
    }
    for (; i < numel; ++i) out[i] = f(in[i]...);
}

// out[i] = f(in[i]...), if the short way applies: the launch's result, else nothing and the caller goes the long way.
template <class F, class... Handles>
std::optional<diopiError_t> flat(diopiContextHandle_t ctx, const char* name, F f, diopiTensorHandle_t out, Handles... inputs) {
    using Float = float;
    using Out = std::invoke_result_t<F, std::conditional_t<true, Float, Handles>...>;
    diopiSize_t shape{nullptr, -1};
    int64_t numel = 0;
    Out* const to = flat_data<Out>(out, shape, numel);
    if (!to) return std::nullopt;
    const auto from = std::make_tuple(static_cast<const float*>(flat_data<float>(inputs, shape, numel))...);
    const bool usable = std::apply([&](auto... in) { return ((in && !overlaps_in_part(to, in, numel)) && ...); }, from);
    if (!usable) return std::nullopt;
    return LAUNCH(ctx, name, [f, numel, to, from] { std::apply([&](auto... in) { flat_loop(f, numel, to, in...); }, from); });
}

inline bool is_integer(const diopiScalar_t* value) {
    return value->stype <= diopi_dtype_uint64;
}

// A scalar as the float32 a kernel would use; nothing if it does not fit (ATen decides whether that is an error).
inline std::optional<float> flat_scalar(const diopiScalar_t* value) {
    if (!value) return std::nullopt;
    if (is_integer(value)) return static_cast<float>(value->ival);
    const float narrow = static_cast<float>(value->fval);
    if (std::isinf(narrow) && !std::isinf(value->fval)) return std::nullopt;
    return narrow;
}

inline bool is_one(const diopiScalar_t* value) { return value && ( is_integer(value) ? value->ival == 1 : value->fval == 1.0); }

// out[i] = f(in[i], number).
template <class F>
std::optional<diopiError_t> flat_with(diopiContextHandle_t ctx, const char* name, F f, diopiTensorHandle_t out,
                                      diopiConstTensorHandle_t input, const diopiScalar_t* number) {
    const auto value = flat_scalar(number);
    if (!value) return std::nullopt;
    return flat(ctx, name, [f, y = *value](float x) { return f(x, y); }, out, input);
}

}  // namespace dipu_vendor
