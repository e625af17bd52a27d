#include "kernel.h"

#include <ATen/OpMathType.h>

namespace dipu_vendor {
namespace {

thread_local std::string error_text;
constexpr int64_t kMostDims = 1 << 20;

}  // namespace

at::ScalarType scalar_type(diopiDtype_t dtype) {
    switch (dtype) {
        case diopi_dtype_int8: return at::kChar;
        case diopi_dtype_uint8: return at::kByte;
        case diopi_dtype_int16: return at::kShort;
        case diopi_dtype_uint16: return at::kUInt16;
        case diopi_dtype_int32: return at::kInt;
        case diopi_dtype_uint32: return at::kUInt32;
        case diopi_dtype_int64: return at::kLong;
        case diopi_dtype_uint64: return at::kUInt64;
        case diopi_dtype_float16: return at::kHalf;
        case diopi_dtype_float32: return at::kFloat;
        case diopi_dtype_float64: return at::kDouble;
        case diopi_dtype_bool: return at::kBool;
        case diopi_dtype_bfloat16: return at::kBFloat16;
        case diopi_dtype_complex32: return at::kComplexHalf;
        case diopi_dtype_complex64: return at::kComplexFloat;
        case diopi_dtype_complex128: return at::kComplexDouble;
        default: TORCH_CHECK(false, "dtype code ", static_cast<int>(dtype), " is not supported");
    }
}

diopiDtype_t diopi_dtype(at::ScalarType type) {
    for (int code = diopi_dtype_int8; code <= diopi_dtype_complex128; ++code)
        if (code != diopi_dtype_tfloat32 && scalar_type(static_cast<diopiDtype_t>(code)) == type) return static_cast<diopiDtype_t>(code);
    TORCH_CHECK(false, "dtype ", type, " has no DIOPI code");
}

Dims dims(diopiSize_t size) {
    TORCH_CHECK(size.len >= 0 && size.len <= kMostDims && (size.data || size.len == 0), "a list of ", size.len, " numbers cannot be right");
    return Dims(size.data, size.data + size.len);
}

namespace {

template <class Handle>
std::vector<at::Tensor> tensors_of(HandleList<Handle> given) {
    TORCH_CHECK(given.count >= 0 && given.count <= kMostDims && (given.handles || given.count == 0), "a list of ", given.count, " tensors cannot be right");
    std::vector<at::Tensor> tensors;
    for (int64_t i = 0; i < given.count; ++i) tensors.push_back(view_or_undefined(given.handles[i]));
    return tensors;
}

}  // namespace

std::vector<at::Tensor> argument(HandleList<diopiConstTensorHandle_t> given) { return tensors_of(given); }
std::vector<at::Tensor> argument(HandleList<diopiTensorHandle_t> given) { return tensors_of(given); }

void Written::check() const {
    TORCH_CHECK(tensor.sizes() == at::IntArrayRef(sizes), "the output has the shape ", at::IntArrayRef(sizes), " but the result has ",
                tensor.sizes());
}

diopiTensorHandle_t require_like(diopiContextHandle_t ctx, const at::Tensor& result) {
    diopiTensorHandle_t made = nullptr;
    const diopiSize_t size{result.sizes().data(), result.dim()}, stride{result.strides().data(), result.dim()};
    const bool dense = result.is_non_overlapping_and_dense();
    const auto status = diopiRequireTensor(ctx, &made, &size, dense && result.dim() > 0 ? &stride : nullptr, diopi_dtype(result.scalar_type()), diopi_device);
    TORCH_CHECK(status == diopiSuccess && made, "no tensor could be made for the result (error ", static_cast<int>(status), ")");
    view(made).copy_(result);
    return made;
}

at::Tensor upcast(const at::Tensor& tensor) { return tensor.to(at::toOpMathType(tensor.scalar_type())); }

at::Scalar scalar(const diopiScalar_t* value) {
    TORCH_CHECK(value, "a number is NULL that must be given");
    return value->stype <= diopi_dtype_uint64 ? at::Scalar(value->ival) : at::Scalar(value->fval);
}

std::optional<at::Scalar> optional_scalar(const diopiScalar_t* value) {
    return value ? std::optional<at::Scalar>(scalar(value)) : std::nullopt;
}

const char* kind_of(const std::exception& error) {
    if (dynamic_cast<const c10::IndexError*>(&error)) return "IndexError: ";
    if (dynamic_cast<const c10::NotImplementedError*>(&error)) return "NotImplementedError: ";
    if (dynamic_cast<const c10::ValueError*>(&error)) return "ValueError: ";
    if (dynamic_cast<const c10::TypeError*>(&error)) return "TypeError: ";
    return "";
}

void set_error(const std::string& message) { error_text = message; }
const char* last_error() { return error_text.c_str(); }

std::string what(const std::exception& error) {
    const auto* own = dynamic_cast<const c10::Error*>(&error);
    return own ? own->what_without_backtrace() : error.what();
}

}  // namespace dipu_vendor

// Who this library is.
const char* diopiGetVendorName(void) { return dipu_vendor::kVendorName; }
const char* diopiGetImplVersion(void) { return "0.1.0"; }
const char* diopiGetLastErrorString(void) { return dipu_vendor::last_error(); }
