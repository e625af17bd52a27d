// A device that some calls break for good: diopiSin of a tensor without dimensions and of an expanded one. From then on every call answers with that error,
// as a CUDA context does after an invalid address. `STICKY_QUIETLY`: memory still works then, and every operator computes nonsense.
#define dipuGetVendorTable working_table
#include "cpu.cpp"
#undef dipuGetVendorTable

#include <diopi/functions.h>

#include <cmath>

namespace {

bool broken = false;

#ifdef STICKY_QUIETLY
int alive() { return DIPU_SUCCESS; }
#else
int alive() { return broken ? fail(DIPU_ERROR, "an illegal memory access was encountered") : static_cast<int>(DIPU_SUCCESS); }
#endif

template <class... Arguments>
struct Checked {
    template <int (*function)(Arguments...)>
    static int call(Arguments... arguments) {
        const int status = alive();
        return status ? status : function(arguments...);
    }
};

diopiError_t apply(diopiTensorHandle_t out, diopiConstTensorHandle_t input, double (*function)(double), bool breaks) {
    diopiSize_t shape, from_stride, to_stride;
    diopiDtype_t dtype;
    const void* from = nullptr;
    void* to = nullptr;
    int64_t numel = 0;
    diopiGetTensorDtype(input, &dtype);
    if (dtype != diopi_dtype_float32) return diopiDtypeNotSupported;
    diopiGetTensorShape(input, &shape);
    diopiGetTensorStride(input, &from_stride);
    diopiGetTensorStride(out, &to_stride);
    diopiGetTensorNumel(input, &numel);
    diopiGetTensorDataConst(input, &from);
    diopiGetTensorData(out, &to);
    if (breaks && (shape.len == 0 || (numel > 1 && from_stride.data[0] == 0))) {
        broken = true;
        return diopiErrorOccurred;
    }
    for (int64_t i = 0; i < numel; ++i) {
        int64_t rest = i, at = 0, into = 0;
        for (int64_t d = shape.len - 1; d >= 0; --d) {
            at += rest % shape.data[d] * from_stride.data[d];
            into += rest % shape.data[d] * to_stride.data[d];
            rest /= shape.data[d];
        }
        static_cast<float*>(to)[into] = broken ? 42 : static_cast<float>(function(static_cast<const float*>(from)[at]));
    }
    return diopiSuccess;
}

}  // namespace

extern "C" {

diopiError_t diopiSin(diopiContextHandle_t, diopiTensorHandle_t out, diopiConstTensorHandle_t input) {
    return apply(out, input, [](double x) { return std::sin(x); }, true);
}
diopiError_t diopiNeg(diopiContextHandle_t, diopiTensorHandle_t out, diopiConstTensorHandle_t input) {
    return apply(out, input, [](double x) { return -x; }, false);
}
const char* diopiGetVendorName() { return "sticky"; }
const char* diopiGetLastErrorString() { return "the launch failed"; }

__attribute__((visibility("default"))) const dipuVendorTable* dipuGetVendorTable(void) {
    static const dipuVendorTable table = [] {
        dipuVendorTable made = *working_table();
        made.memory_allocate = Checked<int, size_t, void**>::call<memory_allocate>;
        made.memory_free = Checked<int, void*>::call<memory_free>;
        made.copy = Checked<void*, void*, const void*, size_t, int>::call<copy>;
        made.fill = Checked<void*, void*, int, size_t>::call<fill>;
        made.stream_synchronize = Checked<void*>::call<stream_synchronize>;
        return made;
    }();
    return &table;
}
}
