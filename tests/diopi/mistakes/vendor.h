// A vendor whose library is the host vendor's with deliberate mistakes: what is not defined here is found in the host library,
// which this one is linked to. A mistake calls the host's function and spoils its arguments or its results.
#pragma once

#include <diopi/functions.h>
#include <diopi/functions_ext.h>
#include <dipu/vendor.h>
#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

using Context = diopiContextHandle_t;
using Tensor = diopiTensorHandle_t;
using Const = diopiConstTensorHandle_t;
using Scalar = const diopiScalar_t*;
using Status = diopiError_t;

// The host's function of this name; its work is done when it returns.
template <class Function>
struct Next {
    Function function;
    template <class... Arguments>
    Status operator()(Context ctx, Arguments... arguments) const;
};
#define HOST(name) (Next<decltype(&name)>{reinterpret_cast<decltype(&name)>(dlsym(RTLD_NEXT, #name))})

extern "C" const dipuVendorTable* dipuGetVendorTable(void);

template <class Function>
template <class... Arguments>
Status Next<Function>::operator()(Context ctx, Arguments... arguments) const {
    const Status status = function(ctx, arguments...);
    diopiStreamHandle_t stream = nullptr;
    if (status == diopiSuccess && diopiGetStream(ctx, &stream) == diopiSuccess && dipuGetVendorTable()->stream_synchronize(stream))
        return diopiErrorOccurred;
    return status;
}

// The elements of a tensor, by their number in row-major order.
class View {
public:
    explicit View(Const th);
    int64_t numel() const { return numel_; }
    int64_t dims() const { return static_cast<int64_t>(shape_.size()); }
    int64_t size(int64_t dim) const { return shape_[static_cast<size_t>(dim)]; }
    const std::vector<int64_t>& shape() const { return shape_; }
    diopiDtype_t dtype() const { return dtype_; }
    bool is(diopiDtype_t dtype) const { return dtype_ == dtype; }
    bool half() const { return is(diopi_dtype_float16) || is(diopi_dtype_bfloat16); }
    bool real() const { return half() || is(diopi_dtype_float32) || is(diopi_dtype_float64); }
    bool dense() const;

    char* data() const { return data_; }
    char* storage() const { return storage_; }
    size_t width() const { return width_; }
    // Bytes from the first element to the end of the storage.
    size_t room() const { return room_; }
    char* at(int64_t number) const;
    int64_t stride(int64_t dim) const { return strides_[static_cast<size_t>(dim)]; }

    double get(int64_t number) const;  // of real numbers
    int64_t integer(int64_t number) const;
    void set(int64_t number, double value) const;

private:
    char *data_, *storage_;
    diopiDtype_t dtype_;
    std::vector<int64_t> shape_, strides_;
    int64_t numel_;
    size_t width_, room_;
};

// A contiguous tensor of the given shape that lives as long as the call.
Tensor required(Context ctx, const std::vector<int64_t>& shape, diopiDtype_t dtype);
// A contiguous copy, with its real numbers in another dtype if one is given.
Tensor copied(Context ctx, Const from);
Tensor converted(Context ctx, Const from, diopiDtype_t dtype);
// What an element-wise operator reads that believes all memory to be contiguous, from `start` on.
Tensor misread(Context ctx, Const from, const char* start);
// Element by element, with conversion.
void assign(const View& to, const View& from);
float truncated_bfloat16(double value);
double through_half(double value);
