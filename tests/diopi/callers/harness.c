/* Runs all callers, one line each: "ok diopiSub" or "FAIL diopiSub: why". `--wrong NAME` (or `all`) makes each first expected
 * number wrong by one, to show that a wrong number is seen. The status is 0 if all are ok.
 */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../csrc/direct/direct.h"

/* What a vendor library exports besides its operators. */
const dipuVendorTable* dipuGetVendorTable(void);

enum { MOST_CALLERS = 200, MOST_TENSORS = 64, MOST_DIMS = 8 };

diopiContextHandle_t ctx;

static struct {
    const char* name;
    void (*caller)(void);
    bool missing;
} callers[MOST_CALLERS];
static size_t caller_count;
static diopiMachine* machine;
static struct {
    Tensor handle;
    void* memory;
} tensors[MOST_TENSORS];
static size_t tensor_count;
static char failure[1024];
static size_t expectations;
static bool wrong;

static void stop(const char* text) {
    fprintf(stderr, "%s\n", text);
    exit(2);
}

void enlist(const char* name, void (*caller)(void), void (*function)(void)) {
    if (caller_count == MOST_CALLERS) stop("too many callers");
    callers[caller_count].name = name;
    callers[caller_count].missing = !function;
    callers[caller_count++].caller = caller;
}

static size_t width_of(diopiDtype_t dtype) {
    switch (dtype) {
        case diopi_dtype_bool: return 1;
        case diopi_dtype_int32:
        case diopi_dtype_float32: return 4;
        case diopi_dtype_int64:
        case diopi_dtype_complex64: return 8;
        default: stop("a dtype that the harness does not know"); return 0;
    }
}

static size_t numel_of(diopiSize_t size) {
    size_t numel = 1;
    for (int64_t i = 0; i < size.len; ++i) numel *= (size_t)size.data[i];
    return numel;
}

Tensor empty(diopiDtype_t dtype, diopiSize_t size) {
    const size_t bytes = numel_of(size) * width_of(dtype);
    int64_t strides[MOST_DIMS], step = 1;
    if (size.len > MOST_DIMS || tensor_count == MOST_TENSORS) stop("too many dimensions or tensors");
    for (int64_t i = size.len - 1; i >= 0; --i) {
        strides[i] = step;
        step *= size.data[i];
    }
    void* memory = NULL;
    if (diopi_direct_allocate(machine, bytes, &memory) || diopi_direct_fill(machine, memory, 0x5a, bytes)) stop(diopi_direct_problem());
    Tensor made = diopi_direct_tensor_create(memory, size.len, size.data, strides, dtype, diopi_device, 0, NULL, 0, -1);
    if (!made) stop(diopi_direct_problem());
    tensors[tensor_count].handle = made;
    tensors[tensor_count++].memory = memory;
    return made;
}

Tensor tensor_of(diopiDtype_t dtype, diopiSize_t size, size_t count, const double* numbers) {
    const size_t width = width_of(dtype);
    if (numel_of(size) != count) stop("the numbers do not fit the size");
    Tensor made = empty(dtype, size);
    unsigned char* data = malloc(count * width);
    for (size_t i = 0; i < count; ++i) {
        if (dtype == diopi_dtype_float32) ((float*)data)[i] = (float)numbers[i];
        if (dtype == diopi_dtype_int32) ((int32_t*)data)[i] = (int32_t)numbers[i];
        if (dtype == diopi_dtype_int64) ((int64_t*)data)[i] = (int64_t)numbers[i];
        if (dtype == diopi_dtype_bool) data[i] = numbers[i] != 0;
    }
    if (diopi_direct_write(machine, tensors[tensor_count - 1].memory, data, count * width)) stop(diopi_direct_problem());
    free(data);
    return made;
}

static void fail(const char* text) {
    if (!failure[0]) snprintf(failure, sizeof(failure), "%s", text);
}

void called(diopiError_t status, const char* expression) {
    char text[768];
    if (status != diopiSuccess) {
        snprintf(text, sizeof(text), "%.400s answered %d: %.300s", expression, (int)status, diopiGetLastErrorString());
        fail(text);
    } else if (diopi_direct_synchronize(machine)) {
        fail(diopi_direct_problem());
    }
}

static double number_at(const unsigned char* data, diopiDtype_t dtype, size_t i) {
    switch (dtype) {
        case diopi_dtype_bool: return data[i];
        case diopi_dtype_int32: return ((const int32_t*)data)[i];
        case diopi_dtype_int64: return (double)((const int64_t*)data)[i];
        default: return ((const float*)data)[i]; /* also the two parts of a complex number */
    }
}

void expect(ConstTensor tensor, const char* text, size_t count, const double* numbers) {
    diopiDtype_t dtype = diopi_dtype_unsupported;
    diopiSize_t size = NONE;
    const void* pointer = NULL;
    if (failure[0]) return;
    diopiGetTensorDtype(tensor, &dtype);
    diopiGetTensorShape(tensor, &size);
    diopiGetTensorDataConst(tensor, &pointer);
    const size_t bytes = numel_of(size) * width_of(dtype), parts = dtype == diopi_dtype_complex64 ? 2 : 1;
    if (numel_of(size) * parts != count) {
        fail("another number of elements than expected");
        return;
    }
    unsigned char* data = malloc(bytes);
    if (diopi_direct_read(machine, data, pointer, bytes)) stop(diopi_direct_problem());
    for (size_t i = 0; i < count; ++i) {
        const double got = number_at(data, dtype, i), wanted = numbers[i] + (wrong && i == 0);
        if (!(fabs(got - wanted) <= 1e-5 * fmax(1, fabs(wanted)))) {
            char line[256];
            snprintf(line, sizeof(line), "%s[%zu] is %.8g, expected %.8g", text, i, got, wanted);
            fail(line);
        }
    }
    ++expectations;
    free(data);
}

static void clean(void) {
    diopi_direct_context_destroy(ctx);
    while (tensor_count) {
        --tensor_count;
        diopi_direct_tensor_destroy(tensors[tensor_count].handle);
        diopi_direct_free(machine, tensors[tensor_count].memory);
    }
}

static bool run(size_t number, const char* to_spoil) {
    const char* name = callers[number].name;
    ctx = diopi_direct_context_create(machine);
    if (!ctx) stop(diopi_direct_problem());
    failure[0] = 0;
    expectations = 0;
    wrong = to_spoil && (!strcmp(to_spoil, "all") || !strcmp(to_spoil, name));
    if (callers[number].missing)
        fail("the library does not have it");
    else
        callers[number].caller();
    if (!expectations) fail("nothing was expected");
    printf(failure[0] ? "FAIL %s: %s\n" : "ok %s\n", name, failure);
    clean();
    return !failure[0];
}

int main(int argc, char** argv) {
    const char* to_spoil = argc == 3 && !strcmp(argv[1], "--wrong") ? argv[2] : NULL;
    bool ok = true;
    if (argc != 1 && !to_spoil) stop("usage: callers [--wrong NAME|all]");
    if (diopi_direct_install()) stop(diopi_direct_problem());
    machine = diopi_direct_machine_create(dipuGetVendorTable(), 0);
    if (!machine) stop(diopi_direct_problem());
    for (size_t i = 0; i < caller_count; ++i) ok = run(i, to_spoil) && ok;
    diopi_direct_machine_destroy(machine);
    return ok ? 0 : 1;
}
