/* A vendor's library as small as one can be. With HAND_TYPED it knows only what its author typed from the published interface,
 * as a library that exists already does; otherwise it is built against the generated headers. */
#ifdef HAND_TYPED
#include <stdbool.h>
#include <stdint.h>
typedef enum { diopiSuccess = 0, diopiErrorOccurred = 1 } diopiError_t;
typedef struct diopiContext* diopiContextHandle_t;
typedef struct diopiTensor* diopiTensorHandle_t;
typedef const struct diopiTensor* diopiConstTensorHandle_t;
typedef enum { diopi_host = 0, diopi_device = 1 } diopiDevice_t;
typedef enum { diopi_dtype_int64 = 6, diopi_dtype_float32 = 9, diopi_dtype_float64 = 10, diopi_dtype_bool = 11 } diopiDtype_t;
typedef struct {
    const int64_t* data;
    int64_t len;
} diopiSize_t;
typedef struct {
    diopiDtype_t stype;
    union {
        double fval;
        int64_t ival;
    };
} diopiScalar_t;
extern diopiError_t diopiGetTensorData(diopiTensorHandle_t th, void** data);
extern diopiError_t diopiGetTensorDataConst(diopiConstTensorHandle_t th, const void** data);
extern diopiError_t diopiGetTensorShape(diopiConstTensorHandle_t th, diopiSize_t* size);
extern diopiError_t diopiGetTensorStride(diopiConstTensorHandle_t th, diopiSize_t* stride);
extern diopiError_t diopiGetTensorNumel(diopiConstTensorHandle_t th, int64_t* numel);
extern diopiError_t diopiRequireTensor(diopiContextHandle_t ctx, diopiTensorHandle_t* tensor, const diopiSize_t* size,
                                       const diopiSize_t* stride, const diopiDtype_t dtype, const diopiDevice_t device);
#else
#include <diopi/functions.h>
#endif

static const char* trouble = "";

const char* diopiGetVendorName(void) { return "tiny"; }
const char* diopiGetImplVersion(void) { return "7.8"; }
const char* diopiGetLastErrorString(void) { return trouble; }

static double number(const diopiScalar_t* scalar) { return scalar->stype == diopi_dtype_float64 ? scalar->fval : (double)scalar->ival; }

/* one row of floats */
diopiError_t diopiAddScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, const diopiScalar_t* other,
                            const diopiScalar_t* alpha) {
    void* to;
    const void* from;
    diopiSize_t shape, stride;
    if (!out || !input || !other || !alpha) {
        trouble = "an argument is NULL";
        return diopiErrorOccurred;
    }
    diopiGetTensorData(out, &to);
    diopiGetTensorDataConst(input, &from);
    diopiGetTensorShape(input, &shape);
    diopiGetTensorStride(input, &stride);
    if (shape.len != 1) {
        trouble = "one dimension is all this chip has";
        return diopiErrorOccurred;
    }
    for (int64_t i = 0; i < shape.data[0]; ++i)
        ((float*)to)[i] = ((const float*)from)[i * stride.data[0]] + (float)(number(other) * number(alpha));
    return diopiSuccess;
}

/* the list itself, as a tensor of its own */
diopiError_t diopiNonzero(diopiContextHandle_t ctx, diopiTensorHandle_t* out, diopiConstTensorHandle_t input) {
    int64_t numel, found = 0;
    const void* from;
    void* to;
    diopiGetTensorNumel(input, &numel);
    diopiGetTensorDataConst(input, &from);
    for (int64_t i = 0; i < numel; ++i) found += ((const float*)from)[i] != 0;
    const int64_t sizes[] = {found, 1};
    const diopiSize_t size = {sizes, 2};
    if (diopiRequireTensor(ctx, out, &size, 0, diopi_dtype_int64, diopi_device) != diopiSuccess) return diopiErrorOccurred;
    diopiGetTensorData(*out, &to);
    found = 0;
    for (int64_t i = 0; i < numel; ++i)
        if (((const float*)from)[i] != 0) ((int64_t*)to)[found++] = i;
    return diopiSuccess;
}

diopiError_t diopiEqual(diopiContextHandle_t ctx, bool* out, diopiConstTensorHandle_t input, diopiConstTensorHandle_t other) {
    *out = input == other;
    return diopiSuccess;
}

/* the sizes, by value, into the output */
diopiError_t diopiSum(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiSize_t dim) {
    void* to;
    diopiGetTensorData(out, &to);
    for (int64_t i = 0; i < dim.len; ++i) ((float*)to)[i] = (float)dim.data[i];
    return diopiSuccess;
}
