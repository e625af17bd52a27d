// What the runtime functions of DIOPI do here; vendor libraries reach them through libdiopirt.
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include "../diopirt/runtime_table.h"
#include "../runtime/generator.h"
#include "context.h"

namespace dipu {

diopiDtype_t diopi_dtype(at::ScalarType type) {
    switch (type) {
        case at::kChar: return diopi_dtype_int8;
        case at::kByte: return diopi_dtype_uint8;
        case at::kShort: return diopi_dtype_int16;
        case at::kUInt16: return diopi_dtype_uint16;
        case at::kInt: return diopi_dtype_int32;
        case at::kUInt32: return diopi_dtype_uint32;
        case at::kLong: return diopi_dtype_int64;
        case at::kUInt64: return diopi_dtype_uint64;
        case at::kHalf: return diopi_dtype_float16;
        case at::kFloat: return diopi_dtype_float32;
        case at::kDouble: return diopi_dtype_float64;
        case at::kBool: return diopi_dtype_bool;
        case at::kBFloat16: return diopi_dtype_bfloat16;
        case at::kComplexHalf: return diopi_dtype_complex32;
        case at::kComplexFloat: return diopi_dtype_complex64;
        case at::kComplexDouble: return diopi_dtype_complex128;
        default: return diopi_dtype_unsupported;
    }
}

at::ScalarType aten_dtype(diopiDtype_t dtype) {
    for (auto type : {at::kChar, at::kByte, at::kShort, at::kUInt16, at::kInt, at::kUInt32, at::kLong, at::kUInt64, at::kHalf, at::kFloat,
                      at::kDouble, at::kBool, at::kBFloat16, at::kComplexHalf, at::kComplexFloat, at::kComplexDouble})
        if (diopi_dtype(type) == dtype) return type;
    TORCH_CHECK(false, "dipu: DIOPI dtype code ", static_cast<int>(dtype), " has no PyTorch counterpart");
}

namespace {

Context& context_of(diopiContextHandle_t handle) { return *reinterpret_cast<Context*>(handle); }
at::Generator& generator_of(diopiGeneratorHandle_t handle) { return *reinterpret_cast<at::Generator*>(handle); }
const at::Generator& generator_of(diopiConstGeneratorHandle_t handle) { return *reinterpret_cast<const at::Generator*>(handle); }

// More dimensions than any operator has; a larger number is a mistake of the vendor's.
constexpr int64_t kMostDims = 64;
c10::IntArrayRef list_of(const diopiSize_t& size) {
    TORCH_CHECK(size.len >= 0 && size.len <= kMostDims && (size.data || size.len == 0), "dipu: a shape of ", size.len, " numbers was required");
    return {size.data, static_cast<size_t>(size.len)};
}
diopiSize_t size_of(c10::IntArrayRef list) { return {list.data(), static_cast<int64_t>(list.size())}; }

// No C++ exception may pass through a C library.
template <class Body>
diopiError_t guarded(Body&& body) {
    try {
        body();
        return diopiSuccess;
    } catch (const std::exception&) {
        return diopiErrorOccurred;
    }
}

// Guarded, if everything that must be there is there.
template <class Body>
diopiError_t given(bool everything, Body&& body) {
    return everything ? guarded(std::forward<Body>(body)) : diopiErrorOccurred;
}

// A question about a tensor: without one, or without a pointer for the answer, it is an error.
template <class Handle, class Answer, class Body>
diopiError_t asked(Handle th, Answer* answer, Body&& body) {
    return given(th && answer, [&] { *answer = body(tensor_of(th)); });
}

// The same, but the caller of the operator gets to see the exception (out of memory, above all).
template <class Body>
diopiError_t guarded_in(diopiContextHandle_t ctx, Body&& body) {
    try {
        body();
        return diopiSuccess;
    } catch (const std::exception&) {
        context_of(ctx).failure = std::current_exception();
        return diopiErrorOccurred;
    }
}

diopiTensorHandle_t keep(diopiContextHandle_t ctx, at::Tensor tensor) {
    auto& owned = context_of(ctx).owned;
    owned.push_back(std::move(tensor));
    return handle(owned.back());
}

// A vendor that counts is given the device's own generator, others the engine inside.
bool counts(const at::Generator& generator) { return generator.device().type() == c10::kPrivateUse1; }

// In a namespace of their own: the names of the interface belong to libdiopirt.
namespace served {

const char* GetVersion() { return "DIOPI 1.2.0"; }

diopiError_t GetTensorData(diopiTensorHandle_t th, void** data) {
    return asked(th, data, [](const at::Tensor& t) { return t.mutable_data_ptr(); });
}
diopiError_t GetTensorDataConst(diopiConstTensorHandle_t th, const void** data) {
    return asked(th, data, [](const at::Tensor& t) { return t.const_data_ptr(); });
}
diopiError_t GetTensorShape(diopiConstTensorHandle_t th, diopiSize_t* size) {
    return asked(th, size, [](const at::Tensor& t) { return size_of(t.sizes()); });
}
diopiError_t GetTensorStride(diopiConstTensorHandle_t th, diopiSize_t* stride) {
    return asked(th, stride, [](const at::Tensor& t) { return size_of(t.strides()); });
}
diopiError_t GetTensorDtype(diopiConstTensorHandle_t th, diopiDtype_t* dtype) {
    return asked(th, dtype, [](const at::Tensor& t) { return diopi_dtype(t.scalar_type()); });
}
diopiError_t GetTensorDevice(diopiConstTensorHandle_t th, diopiDevice_t* device) {
    return asked(th, device, [](const at::Tensor& t) { return t.is_cpu() ? diopi_host : diopi_device; });
}
diopiError_t GetTensorNumel(diopiConstTensorHandle_t th, int64_t* numel) {
    return asked(th, numel, [](const at::Tensor& t) { return t.numel(); });
}
diopiError_t GetTensorElemSize(diopiConstTensorHandle_t th, int64_t* itemsize) {
    return asked(th, itemsize, [](const at::Tensor& t) { return static_cast<int64_t>(t.dtype().itemsize()); });
}
diopiError_t GetTensorStoragePtr(diopiConstTensorHandle_t th, void** storage) {
    return asked(th, storage, [](const at::Tensor& t) { return const_cast<void*>(t.storage().data()); });
}
diopiError_t GetTensorStorageOffset(diopiConstTensorHandle_t th, int64_t* offset) {
    return asked(th, offset, [](const at::Tensor& t) { return t.storage_offset(); });
}
diopiError_t GetTensorStorageNbytes(diopiConstTensorHandle_t th, size_t* nbytes) {
    return asked(th, nbytes, [](const at::Tensor& t) { return t.storage().nbytes(); });
}
diopiError_t GetTensorDeviceIndex(diopiConstTensorHandle_t th, diopiDeviceIndex_t* index) {
    return asked(th, index, [](const at::Tensor& t) { return t.device().index(); });
}

// Parts of a sparse tensor: the handle points into a thread's ring, valid for the call that asked.
diopiConstTensorHandle_t sparse_part(at::Tensor part) {
    thread_local std::array<at::Tensor, 16> ring;
    thread_local size_t next = 0;
    auto& slot = ring[next++ % ring.size()];
    slot = std::move(part);
    return handle(const_cast<const at::Tensor&>(slot));
}
diopiError_t GetTensorCrowIndices(diopiConstTensorHandle_t th, diopiConstTensorHandle_t* crow_indices) {
    return asked(th, crow_indices, [](const at::Tensor& t) { return sparse_part(t.crow_indices()); });
}
diopiError_t GetTensorColIndices(diopiConstTensorHandle_t th, diopiConstTensorHandle_t* col_indices) {
    return asked(th, col_indices, [](const at::Tensor& t) { return sparse_part(t.col_indices()); });
}
diopiError_t GetTensorValues(diopiConstTensorHandle_t th, diopiConstTensorHandle_t* values) {
    return asked(th, values, [](const at::Tensor& t) { return sparse_part(t.values()); });
}
diopiError_t IsTensorSparse(diopiConstTensorHandle_t th, bool* is_sparse) {
    return asked(th, is_sparse, [](const at::Tensor& t) { return t.layout() != at::kStrided; });
}

diopiError_t GetCurrentDeviceIndex(diopiDeviceIndex_t* index) {
    return given(index, [&] { *index = static_cast<diopiDeviceIndex_t>(current_device()); });
}
diopiError_t GetStream(diopiContextHandle_t ctx, diopiStreamHandle_t* stream) {
    return given(ctx && stream, [&] { *stream = current_stream_handle(context_of(ctx).device); });
}

diopiError_t RequireTensor(diopiContextHandle_t ctx, diopiTensorHandle_t* tensor, const diopiSize_t* size,
                           const diopiSize_t* stride, const diopiDtype_t dtype, const diopiDevice_t device) {
    if (tensor) *tensor = nullptr;
    if (!ctx || !tensor || !size || (device != diopi_host && device != diopi_device)) return diopiErrorOccurred;
    return guarded_in(ctx, [&] {
        const auto where = device == diopi_host ? at::Device(at::kCPU) : dipu_device(context_of(ctx).device);
        const auto options = at::TensorOptions().dtype(aten_dtype(dtype)).device(where);
        const bool strided = stride && stride->data;
        *tensor = keep(ctx, strided ? at::empty_strided(list_of(*size), list_of(*stride), options) : at::empty(list_of(*size), options));
    });
}
diopiError_t RequireBuffer(diopiContextHandle_t ctx, diopiTensorHandle_t* tensor, int64_t num_bytes, diopiDevice_t device) {
    const diopiSize_t size{&num_bytes, 1};
    return RequireTensor(ctx, tensor, &size, nullptr, diopi_dtype_uint8, device);
}

diopiError_t GeneratorGetState(diopiContextHandle_t ctx, diopiConstGeneratorHandle_t th, diopiTensorHandle_t* data) {
    return given(ctx && th && data, [&] {
        at::Generator generator = generator_of(th);
        std::lock_guard<std::mutex> lock(generator.mutex());
        *data = keep(ctx, generator.get_state());
    });
}
diopiError_t GeneratorSetState(diopiGeneratorHandle_t th, diopiConstTensorHandle_t state) {
    return given(th && state, [&] {
        auto& generator = generator_of(th);
        std::lock_guard<std::mutex> lock(generator.mutex());
        generator.set_state(tensor_of(state));
    });
}
// An engine of the CPU's kind has no offset: the pair is (seed, 0), and setting one seeds anew with both mixed.
diopiError_t GeneratorGetSeedAndOffset(diopiGeneratorHandle_t th, uint64_t* seed, uint64_t* offset) {
    return given(th && seed && offset, [&] {
        const at::Generator& generator = generator_of(th);
        *seed = generator.current_seed();
        *offset = counts(generator) ? generator.get_offset() : 0;
    });
}
diopiError_t GeneratorSetSeedAndOffset(diopiGeneratorHandle_t th, uint64_t seed, uint64_t offset) {
    return given(th, [&] {
        at::Generator& generator = generator_of(th);
        generator.set_current_seed(counts(generator) ? seed : seed + offset * 0x9e3779b97f4a7c15ull);
        if (counts(generator)) generator.set_offset(offset);
    });
}

diopiError_t RecordStart(const char* record_name, void** record) {
    return given(record_name && record, [&] {
        auto* scope = new at::RecordFunction(at::RecordScope::FUNCTION);
        if (scope->isActive()) scope->before(record_name);
        *record = scope;
    });
}
diopiError_t RecordEnd(void** record) {
    return given(record, [&] {
        delete static_cast<at::RecordFunction*>(*record);
        *record = nullptr;
    });
}

}  // namespace served

const bool table_filled = [] {
    diopi_runtime = {
        served::GetVersion,
        served::GetTensorData,
        served::GetTensorDataConst,
        served::GetTensorShape,
        served::GetTensorStride,
        served::GetTensorDtype,
        served::GetTensorDevice,
        served::GetTensorNumel,
        served::GetTensorElemSize,
        served::GetTensorStoragePtr,
        served::GetTensorStorageOffset,
        served::GetTensorStorageNbytes,
        served::GetTensorDeviceIndex,
        served::GetTensorCrowIndices,
        served::GetTensorColIndices,
        served::GetTensorValues,
        served::IsTensorSparse,
        served::GetCurrentDeviceIndex,
        served::GetStream,
        served::RequireTensor,
        served::RequireBuffer,
        served::GeneratorGetState,
        served::GeneratorSetState,
        served::GeneratorGetSeedAndOffset,
        served::GeneratorSetSeedAndOffset,
        served::RecordStart,
        served::RecordEnd,
    };
    return true;
}();

}  // namespace
}  // namespace dipu
