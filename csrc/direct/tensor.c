/* Tensors, contexts and generators: made and freed by the caller, tensors also by the vendor through its context. */
#include <stdlib.h>
#include <string.h>

#include "guard.h"
#include "records.h"

int64_t direct_element_size(int dtype) {
    switch (dtype) {
        case diopi_dtype_int8:
        case diopi_dtype_uint8:
        case diopi_dtype_bool: return 1;
        case diopi_dtype_int16:
        case diopi_dtype_uint16:
        case diopi_dtype_float16:
        case diopi_dtype_bfloat16: return 2;
        case diopi_dtype_int32:
        case diopi_dtype_uint32:
        case diopi_dtype_float32:
        case diopi_dtype_tfloat32:
        case diopi_dtype_complex32: return 4;
        case diopi_dtype_int64:
        case diopi_dtype_uint64:
        case diopi_dtype_float64:
        case diopi_dtype_complex64: return 8;
        case diopi_dtype_complex128: return 16;
        default: return 0;
    }
}

int64_t direct_numel(int64_t dims, const int64_t* shape) {
    if (dims < 0 || dims > MOST_DIMS || (dims > 0 && !shape)) return -1;
    int64_t count = 1;
    bool empty = false;
    for (int64_t i = 0; i < dims; ++i) {
        if (shape[i] < 0) return -1;
        empty |= shape[i] == 0;
        if (!empty && __builtin_mul_overflow(count, shape[i], &count)) return -1;
    }
    return empty ? 0 : count;
}

int64_t direct_extent(int64_t dims, const int64_t* shape, const int64_t* stride) {
    const int64_t count = direct_numel(dims, shape);
    if (count < 0 || (dims > 0 && !stride)) return -1;
    int64_t last = 0;
    for (int64_t i = 0; i < dims; ++i) {
        int64_t step;
        if (stride[i] < 0) return -1;
        if (count == 0) continue;
        if (__builtin_mul_overflow(shape[i] - 1, stride[i], &step) || __builtin_add_overflow(last, step, &last)) return -1;
    }
    return count == 0 ? 0 : last == INT64_MAX ? -1 : last + 1;
}

diopiTensorHandle_t diopi_direct_tensor_create(void* data, int64_t dims, const int64_t* shape, const int64_t* stride, int dtype,
                                               int device, int device_index, void* storage, int64_t offset, int64_t nbytes) {
    const int64_t element = direct_element_size(dtype);
    const int64_t extent = direct_extent(dims, shape, stride);
    int64_t needed = 0;
    if (element == 0) return direct_fail("the dtype is unknown"), NULL;
    if (extent < 0 || __builtin_mul_overflow(extent, element, &needed))
        return direct_fail("the shape and strides are absurd: negative numbers, more than 64 dimensions, or too large"), NULL;
    if (offset < 0) return direct_fail("the storage offset is negative"), NULL;
    if (device != diopi_host && device != diopi_device) return direct_fail("the device is neither host nor device"), NULL;
    struct diopiTensor* th = calloc(1, sizeof(*th) + 2 * (size_t)dims * sizeof(int64_t));
    if (!th) return direct_fail("out of host memory"), NULL;
    th->mark = MARK_TENSOR;
    th->device_index = device_index;
    th->dtype = (diopiDtype_t)dtype;
    th->device = (diopiDevice_t)device;
    th->data = data;
    th->storage = storage ? storage : data;
    th->offset = offset;
    th->nbytes = nbytes < 0 ? (size_t)needed : (size_t)nbytes;
    th->dims = dims;
    th->numel = direct_numel(dims, shape);
    if (dims > 0) {
        memcpy(th->numbers, shape, (size_t)dims * sizeof(int64_t));
        memcpy(th->numbers + dims, stride, (size_t)dims * sizeof(int64_t));
    }
    return th;
}

int diopi_direct_tensor_make_sparse(diopiTensorHandle_t th, diopiConstTensorHandle_t crow_indices, diopiConstTensorHandle_t col_indices,
                                    diopiConstTensorHandle_t values) {
    if (!is_tensor(th) || !is_tensor(crow_indices) || !is_tensor(col_indices) || !is_tensor(values))
        return direct_fail("a sparse tensor needs row indices, column indices and values");
    th->crow_indices = crow_indices;
    th->col_indices = col_indices;
    th->values = values;
    return 0;
}

void diopi_direct_tensor_destroy(diopiTensorHandle_t th) {
    if (!is_tensor(th)) return;
    th->mark = 0;
    free(th);
}

diopiContextHandle_t diopi_direct_context_create(diopiMachine* machine) {
    if (!machine) return direct_fail("no machine"), NULL;
    struct diopiContext* ctx = calloc(1, sizeof(*ctx));
    if (!ctx) return direct_fail("out of host memory"), NULL;
    ctx->mark = MARK_CONTEXT;
    ctx->machine = machine;
    return ctx;
}

void diopi_direct_context_aim(diopiContextHandle_t ctx, void* function) {
    if (!is_context(ctx)) return;
    ctx->function = function;
    ctx->thrown[0] = 0;
}

const char* diopi_direct_context_thrown(diopiContextHandle_t ctx) { return is_context(ctx) ? ctx->thrown : ""; }

void* direct_function(diopiContextHandle_t ctx) { return is_context(ctx) ? ctx->function : NULL; }

char* direct_thrown(diopiContextHandle_t ctx, size_t* size) {
    *size = sizeof(ctx->thrown);
    return ctx->thrown;
}

int64_t diopi_direct_context_owned(diopiContextHandle_t ctx) { return is_context(ctx) ? (int64_t)ctx->count : 0; }

diopiTensorHandle_t diopi_direct_context_required(diopiContextHandle_t ctx, int64_t number) {
    return number >= 0 && number < diopi_direct_context_owned(ctx) ? ctx->owned[number] : NULL;
}

void diopi_direct_context_destroy(diopiContextHandle_t ctx) {
    if (!is_context(ctx)) return;
    for (size_t i = 0; i < ctx->count; ++i) {
        diopiTensorHandle_t th = ctx->owned[i];
        direct_release(ctx->machine, th->device, th->block);
        diopi_direct_tensor_destroy(th);
    }
    free(ctx->owned);
    ctx->mark = 0;
    free(ctx);
}

diopiGeneratorHandle_t diopi_direct_generator_create(diopiMachine* machine, const void* state, size_t bytes, uint64_t seed,
                                                     uint64_t offset) {
    if (bytes && !state) return direct_fail("a generator without its state"), NULL;
    struct diopiGenerator* th = calloc(1, sizeof(*th));
    unsigned char* copy = malloc(bytes ? bytes : 1);
    if (!th || !copy) {
        free(th);
        free(copy);
        return direct_fail("out of host memory"), NULL;
    }
    if (bytes) memcpy(copy, state, bytes);
    *th = (struct diopiGenerator){MARK_GENERATOR, machine, copy, bytes, seed, offset};
    return th;
}

size_t diopi_direct_generator_state(diopiGeneratorHandle_t th, void* state, size_t capacity) {
    if (!is_generator(th)) return 0;
    if (state && capacity >= th->bytes) memcpy(state, th->state, th->bytes);
    return th->bytes;
}

void diopi_direct_generator_destroy(diopiGeneratorHandle_t th) {
    if (!is_generator(th)) return;
    th->mark = 0;
    free(th->state);
    free(th);
}
