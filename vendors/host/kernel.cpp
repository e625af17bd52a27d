#include "kernel.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>

#include <array>

#include "device_memory.h"

namespace dipu_host {
namespace {

thread_local std::string error_text;
constexpr int64_t kMostDims = 1 << 20;

struct Geometry {
    void* data;
    c10::IntArrayRef sizes, strides;
    caffe2::TypeMeta dtype;
    size_t nbytes;
};

Geometry geometry(diopiConstTensorHandle_t handle) {
    TORCH_CHECK(handle, "a tensor is NULL that must be given");
    const void* data = nullptr;
    diopiSize_t size{}, stride{};
    diopiDtype_t dtype{};
    diopiGetTensorDataConst(handle, &data);
    diopiGetTensorShape(handle, &size);
    diopiGetTensorStride(handle, &stride);
    diopiGetTensorDtype(handle, &dtype);
    Geometry g{untag(data), {size.data, static_cast<size_t>(size.len)}, {stride.data, static_cast<size_t>(stride.len)},
               c10::scalarTypeToTypeMeta(scalar_type(dtype)), 0};
    g.nbytes = at::detail::computeStorageNbytes(g.sizes, g.strides, g.dtype.itemsize());
    return g;
}

using TensorPointer = c10::intrusive_ptr<c10::TensorImpl>;

TensorPointer make(const Geometry& g) {
    c10::Storage storage(c10::Storage::use_byte_size_t(), g.nbytes, c10::DataPtr(g.data, c10::Device(c10::kCPU)), nullptr, false);
    return c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), g.dtype);
}

// Tensors that synchronous kernels have finished with are used again: two allocations less for every operand.
TensorPointer recycled(const Geometry& g) {
    constexpr size_t kSlots = 16;
    thread_local std::array<TensorPointer, kSlots> slots;
    thread_local size_t next = 0;
    auto& slot = slots[next++ % kSlots];
    if (slot && slot.use_count() == 1) {
        auto* storage = slot->unsafe_storage().unsafeGetStorageImpl();
        if (slot->unsafe_storage().use_count() == 1 && slot->dtype() == g.dtype) {
            storage->set_data_ptr_noswap(c10::DataPtr(g.data, c10::Device(c10::kCPU)));
            storage->unsafe_set_nbytes(g.nbytes);
            return slot;
        }
    }
    slot = make(g);
    return slot;
}

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

at::Tensor view(diopiConstTensorHandle_t handle) {
    const Geometry g = geometry(handle);
    TensorPointer impl = asynchronous() ? make(g) : recycled(g);
    impl->set_sizes_and_strides(g.sizes, g.strides, 0);
    return at::Tensor(std::move(impl));
}

std::optional<at::Tensor> optional_view(diopiConstTensorHandle_t handle) {
    return handle ? std::optional<at::Tensor>(view(handle)) : std::nullopt;
}

at::Tensor view_or_undefined(diopiConstTensorHandle_t handle) { return handle ? view(handle) : at::Tensor(); }

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

at::Tensor wide(const at::Tensor& tensor) {
    const auto type = tensor.scalar_type();
    return type == at::kHalf || type == at::kBFloat16 ? tensor.to(at::kFloat) : tensor;
}

std::vector<at::Tensor> views(diopiConstTensorHandle_t* handles, int64_t count) {
    TORCH_CHECK(count >= 0 && (handles || count == 0), "a list of ", count, " tensors cannot be right");
    std::vector<at::Tensor> tensors;
    tensors.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) tensors.push_back(view(handles[i]));
    return tensors;
}

at::Scalar scalar(const diopiScalar_t* value) {
    TORCH_CHECK(value, "a number is NULL that must be given");
    if (value->stype == diopi_dtype_bool) return at::Scalar(value->ival != 0);
    return value->stype <= diopi_dtype_uint64 ? at::Scalar(value->ival) : at::Scalar(value->fval);
}

std::optional<at::Scalar> optional_scalar(const diopiScalar_t* value) {
    return value ? std::optional<at::Scalar>(scalar(value)) : std::nullopt;
}

const char* kind_of(const std::exception& error) {
    if (dynamic_cast<const c10::IndexError*>(&error)) return "IndexError: ";
    if (dynamic_cast<const c10::ValueError*>(&error)) return "ValueError: ";
    if (dynamic_cast<const c10::TypeError*>(&error)) return "TypeError: ";
    return "";
}

void set_error(const std::string& message) { error_text = message; }
const char* last_error() { return error_text.c_str(); }

Stream* stream_of(diopiContextHandle_t ctx) {
    diopiStreamHandle_t stream = nullptr;
    TORCH_CHECK(ctx && diopiGetStream(ctx, &stream) == diopiSuccess && stream, "the context has no stream");
    return static_cast<Stream*>(stream);
}

}  // namespace dipu_host
