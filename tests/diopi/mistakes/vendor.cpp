#include "vendor.h"

namespace {

float from_bfloat16(uint16_t bits) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

uint16_t to_bfloat16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (std::isnan(value)) return 0x7fc0;
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class T>
T read(const char* address) {
    T value;
    std::memcpy(&value, address, sizeof(T));
    return value;
}

template <class T>
void write(char* address, T value) {
    std::memcpy(address, &value, sizeof(T));
}

}  // namespace

View::View(Const th) : data_(nullptr), storage_(nullptr), dtype_(diopi_dtype_unsupported), numel_(0), width_(0), room_(0) {
    const void* data = nullptr;
    void* storage = nullptr;
    diopiSize_t shape{nullptr, 0}, strides{nullptr, 0};
    int64_t width = 0;
    size_t bytes = 0;
    diopiGetTensorDataConst(th, &data);
    diopiGetTensorStoragePtr(th, &storage);
    diopiGetTensorShape(th, &shape);
    diopiGetTensorStride(th, &strides);
    diopiGetTensorDtype(th, &dtype_);
    diopiGetTensorNumel(th, &numel_);
    diopiGetTensorElemSize(th, &width);
    diopiGetTensorStorageNbytes(th, &bytes);
    const auto alias = [](const void* pointer) {
        return pointer ? static_cast<char*>(dipuGetVendorTable()->host_alias(pointer)) : nullptr;
    };
    data_ = alias(data);
    storage_ = alias(storage);
    shape_.assign(shape.data, shape.data + shape.len);
    strides_.assign(strides.data, strides.data + strides.len);
    width_ = static_cast<size_t>(width);
    room_ = data_ && storage_ ? static_cast<size_t>(storage_ + bytes - data_) : 0;
}

bool View::dense() const {
    int64_t step = 1;
    for (int64_t dim = dims() - 1; dim >= 0; --dim) {
        if (size(dim) > 1 && stride(dim) != step) return false;
        step *= size(dim);
    }
    return true;
}

char* View::at(int64_t number) const {
    int64_t offset = 0;
    for (int64_t dim = dims() - 1; dim >= 0; --dim) {
        offset += number % size(dim) * stride(dim);
        number /= size(dim);
    }
    return data_ + offset * static_cast<int64_t>(width_);
}

int64_t View::integer(int64_t number) const {
    const char* address = at(number);
    switch (dtype_) {
        case diopi_dtype_int8: return read<int8_t>(address);
        case diopi_dtype_bool:
        case diopi_dtype_uint8: return read<uint8_t>(address);
        case diopi_dtype_int16: return read<int16_t>(address);
        case diopi_dtype_int32: return read<int32_t>(address);
        case diopi_dtype_int64: return read<int64_t>(address);
        default: return static_cast<int64_t>(get(number));
    }
}

double View::get(int64_t number) const {
    const char* address = at(number);
    switch (dtype_) {
        case diopi_dtype_float16: return static_cast<double>(read<_Float16>(address));
        case diopi_dtype_bfloat16: return from_bfloat16(read<uint16_t>(address));
        case diopi_dtype_float32: return read<float>(address);
        case diopi_dtype_float64: return read<double>(address);
        default: return static_cast<double>(integer(number));
    }
}

void View::set(int64_t number, double value) const {
    char* address = at(number);
    switch (dtype_) {
        case diopi_dtype_float16: return write(address, static_cast<_Float16>(value));
        case diopi_dtype_bfloat16: return write(address, to_bfloat16(static_cast<float>(value)));
        case diopi_dtype_float32: return write(address, static_cast<float>(value));
        case diopi_dtype_float64: return write(address, value);
        case diopi_dtype_int8:
        case diopi_dtype_uint8: return write(address, static_cast<uint8_t>(static_cast<int64_t>(value)));
        case diopi_dtype_bool: return write(address, static_cast<uint8_t>(value != 0));
        case diopi_dtype_int16: return write(address, static_cast<int16_t>(value));
        case diopi_dtype_int32: return write(address, static_cast<int32_t>(value));
        case diopi_dtype_int64: return write(address, static_cast<int64_t>(value));
        default: return;
    }
}

Tensor required(Context ctx, const std::vector<int64_t>& shape, diopiDtype_t dtype) {
    Tensor made = nullptr;
    const diopiSize_t size{shape.data(), static_cast<int64_t>(shape.size())};
    diopiRequireTensor(ctx, &made, &size, nullptr, dtype, diopi_device);
    return made;
}

Tensor copied(Context ctx, Const from) {
    const View source(from);
    const Tensor made = required(ctx, source.shape(), source.dtype());
    const View target(made);
    for (int64_t i = 0; i < source.numel(); ++i) std::memcpy(target.at(i), source.at(i), source.width());
    return made;
}

Tensor converted(Context ctx, Const from, diopiDtype_t dtype) {
    const Tensor made = required(ctx, View(from).shape(), dtype);
    assign(View(made), View(from));
    return made;
}

Tensor misread(Context ctx, Const from, const char* start) {
    const View source(from);
    const Tensor made = required(ctx, source.shape(), source.dtype());
    const View target(made);
    const size_t wanted = static_cast<size_t>(source.numel()) * source.width();
    const size_t there = static_cast<size_t>(source.data() + source.room() - start);
    if (wanted) {
        std::memset(target.data(), 0, wanted);
        std::memcpy(target.data(), start, wanted < there ? wanted : there);
    }
    return made;
}

void assign(const View& to, const View& from) {
    for (int64_t i = 0; i < from.numel(); ++i) to.set(i, from.get(i));
}

float truncated_bfloat16(double value) {
    const float narrow = static_cast<float>(value);
    uint32_t bits;
    std::memcpy(&bits, &narrow, 4);
    return std::isnan(narrow) ? narrow : from_bfloat16(static_cast<uint16_t>(bits >> 16));
}

double through_half(double value) { return static_cast<double>(static_cast<_Float16>(value)); }
