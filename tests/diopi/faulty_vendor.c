// A vendor library with one mistake in each function, for the tests of the conformance suite. float32 and float64 only.
#include <diopi/diopirt.h>
#include <diopi/functions.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef double (*function_t)(double);

typedef struct {
    char* data;
    diopiSize_t shape, stride;
    diopiDtype_t dtype;
    int64_t numel, size;
} view_t;

static view_t view(diopiConstTensorHandle_t th) {
    view_t v;
    const void* data = NULL;
    diopiGetTensorDataConst(th, &data);
    v.data = (char*)data;
    diopiGetTensorShape(th, &v.shape);
    diopiGetTensorStride(th, &v.stride);
    diopiGetTensorDtype(th, &v.dtype);
    diopiGetTensorNumel(th, &v.numel);
    v.size = v.dtype == diopi_dtype_float64 ? 8 : 4;
    return v;
}

static char* element(const view_t* v, int64_t number) {
    int64_t offset = 0;
    for (int64_t d = v->shape.len - 1; d >= 0; d--) {
        offset += number % v->shape.data[d] * v->stride.data[d];
        number /= v->shape.data[d];
    }
    return v->data + offset * v->size;
}

static double get(const view_t* v, const char* at) { return v->size == 8 ? *(const double*)at : *(const float*)at; }

static void put(const view_t* v, char* at, double value) {
    if (v->size == 8)
        *(double*)at = value;
    else
        *(float*)at = (float)value;
}

static int knows(const view_t* v) { return v->dtype == diopi_dtype_float32 || v->dtype == diopi_dtype_float64; }

// The right thing, for the first `count` elements.
static diopiError_t apply(diopiTensorHandle_t out, diopiConstTensorHandle_t input, function_t function, int64_t less) {
    view_t o = view(out), x = view(input);
    if (!knows(&o) || !knows(&x)) return diopiDtypeNotSupported;
    for (int64_t i = 0; i < o.numel - less; i++) put(&o, element(&o, i), function(get(&x, element(&x, i))));
    return diopiSuccess;
}

static double negative(double x) { return -x; }
static double relu(double x) { return x < 0 ? 0 : x; }
static double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }

#define UNARY(name) diopiError_t name(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input)

const char* diopiGetVendorName(void) { return "faulty"; }
const char* diopiGetLastErrorString(void) { return "the chip is on fire"; }

UNARY(diopiNeg) { return apply(out, input, negative, 0); }  // right

UNARY(diopiAbs) { return apply(out, input, fabs, 1); }  // forgets the last element

UNARY(diopiFloor) {  // writes one element too many
    view_t o = view(out);
    diopiError_t error = apply(out, input, floor, 0);
    if (error == diopiSuccess && o.numel) put(&o, element(&o, o.numel - 1) + o.size, 1.0);
    return error;
}

UNARY(diopiCeil) {  // changes its input
    view_t x = view(input);
    diopiError_t error = apply(out, input, ceil, 0);
    if (error == diopiSuccess && x.numel) put(&x, element(&x, 0), 42.0);
    return error;
}

UNARY(diopiRelu) {  // now and then another bit
    static int calls = 0;
    view_t o = view(out);
    diopiError_t error = apply(out, input, relu, 0);
    if (error == diopiSuccess && o.numel > 4 && calls++ % 2) put(&o, element(&o, 3), 1e-30);
    return error;
}

UNARY(diopiSign) {  // crashes for large tensors
    if (view(input).numel > 1000) *(volatile int*)8 = 1;
    return apply(out, input, sign, 0);
}

UNARY(diopiReciprocal) { return diopiErrorOccurred; }

UNARY(diopiSqrt) { return diopiNoImplement; }

UNARY(diopiErf) {  // never comes back from large tensors
    while (view(input).numel > 1000) sleep(1);
    return apply(out, input, erf, 0);
}

UNARY(diopiTanh) {  // takes every tensor for a contiguous one
    view_t o = view(out), x = view(input);
    if (!knows(&o) || !knows(&x)) return diopiDtypeNotSupported;
    for (int64_t i = 0; i < o.numel; i++) put(&o, o.data + i * o.size, tanh(get(&x, x.data + i * x.size)));
    return diopiSuccess;
}

UNARY(diopiExp) {  // adds to what it finds
    view_t o = view(out), x = view(input);
    if (!knows(&o) || !knows(&x)) return diopiDtypeNotSupported;
    for (int64_t i = 0; i < o.numel; i++) {
        char* at = element(&o, i);
        put(&o, at, get(&o, at) * 1e-60 + exp(get(&x, element(&x, i))));
    }
    return diopiSuccess;
}

UNARY(diopiLogicalNot) { return diopiSuccess; }  // writes nothing

UNARY(diopiSin) {  // gives up
    fprintf(stderr, "out of registers\n");
    abort();
}

// Works in memory of its own, and writes `count` bytes at `offset` of it, outside.
static diopiError_t beside_workspace(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, function_t function,
                                     diopiDevice_t device, int64_t offset, int count) {
    diopiTensorHandle_t workspace = NULL;
    void* data = NULL;
    const diopiError_t error = apply(out, input, function, 0);
    if (error != diopiSuccess) return error;
    if (diopiRequireBuffer(ctx, &workspace, 48, device) != diopiSuccess) return diopiErrorOccurred;
    diopiGetTensorData(workspace, &data);
    for (int i = 0; i < count; i++) ((char*)data)[offset + i] = 0;
    return diopiSuccess;
}

UNARY(diopiLog) { return beside_workspace(ctx, out, input, log, diopi_device, 48, 3); }
UNARY(diopiLog2) { return beside_workspace(ctx, out, input, log2, diopi_host, -1, 1); }
UNARY(diopiLog10) { return beside_workspace(ctx, out, input, log10, diopi_device, 0, 48); }  // right

// Writes one row too many to the tensor that it makes.
diopiError_t diopiNonzero(diopiContextHandle_t ctx, diopiTensorHandle_t* out, diopiConstTensorHandle_t input) {
    view_t x = view(input);
    if (!knows(&x)) return diopiDtypeNotSupported;
    int64_t shape[2] = {0, x.shape.len}, row = 0;
    for (int64_t i = 0; i < x.numel; i++) shape[0] += get(&x, element(&x, i)) != 0;
    const diopiSize_t size = {shape, 2};
    void* data = NULL;
    if (diopiRequireTensor(ctx, out, &size, NULL, diopi_dtype_int64, diopi_device) != diopiSuccess) return diopiErrorOccurred;
    diopiGetTensorData(*out, &data);
    for (int64_t i = 0; i < x.numel; i++) {
        if (get(&x, element(&x, i)) == 0) continue;
        for (int64_t d = x.shape.len - 1, number = i; d >= 0; number /= x.shape.data[d--])
            ((int64_t*)data)[row * x.shape.len + d] = number % x.shape.data[d];
        row++;
    }
    if (data) ((int64_t*)data)[shape[0] * shape[1]] = -1;
    return diopiSuccess;
}

// The element of `v` that broadcasting puts at element `number` of `o`.
static char* broadcast(const view_t* v, const view_t* o, int64_t number) {
    int64_t offset = 0;
    for (int64_t d = o->shape.len - 1; d >= 0; d--) {
        const int64_t own = d - (o->shape.len - v->shape.len);
        if (own >= 0 && v->shape.data[own] > 1) offset += number % o->shape.data[d] * v->stride.data[own];
        number /= o->shape.data[d];
    }
    return v->data + offset * v->size;
}

// Clears what it writes before it has read its other input.
diopiError_t diopiMulInp(diopiContextHandle_t ctx, diopiTensorHandle_t input, diopiConstTensorHandle_t other) {
    view_t x = view(input), y = view(other);
    if (!knows(&x) || !knows(&y)) return diopiDtypeNotSupported;
    for (int64_t i = 0; i < x.numel; i++) {
        const double before = get(&x, element(&x, i));
        put(&x, element(&x, i), 0.0);
        put(&x, element(&x, i), before * get(&y, broadcast(&y, &x, i)));
    }
    return diopiSuccess;
}

// Draws the same numbers whatever the seed.
diopiError_t diopiUniformInp(diopiContextHandle_t ctx, diopiTensorHandle_t inout, double from, double to, diopiGeneratorHandle_t generator) {
    view_t o = view(inout);
    if (!knows(&o)) return diopiDtypeNotSupported;
    for (int64_t i = 0; i < o.numel; i++) {
        double unit = fmod((double)(i + 1) * 0.6180339887498949, 1.0);
        put(&o, element(&o, i), from + (to - from) * unit);
    }
    return diopiSuccess;
}
