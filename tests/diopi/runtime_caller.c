/* A library whose operators do nothing but ask the runtime functions and report what they were told. Its vendor table is the
 * one of the library that CALLER_RUNTIME names, so that it works wherever that one does; the operators are its own. */
#define _GNU_SOURCE
#include <diopi/functions.h>
#include <dipu/vendor.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char report[1 << 16], mode[32];
static size_t used;
static dipuVendorTable table;

static void say(const char* format, ...) {
    va_list list;
    va_start(list, format);
    const int length = vsnprintf(report + used, sizeof(report) - used, format, list);
    va_end(list);
    if (length > 0 && used + (size_t)length < sizeof(report)) used += (size_t)length;
}

void caller_mode(const char* text) { snprintf(mode, sizeof(mode), "%s", text); }
const char* caller_report(void) { return report; }
size_t caller_used(void) {
    size_t left = 0, total = 0;
    table.memory_info(0, &left, &total);
    return total - left;
}

const dipuVendorTable* dipuGetVendorTable(void) {
    static char own_path[4096];
    Dl_info info;
    void* other = dlopen(getenv("CALLER_RUNTIME"), RTLD_NOW | RTLD_LOCAL);
    dipuGetVendorTable_t entry = other ? (dipuGetVendorTable_t)dlsym(other, DIPU_VENDOR_ENTRY) : NULL;
    if (!entry || !dladdr((void*)&dipuGetVendorTable, &info)) return NULL;
    snprintf(own_path, sizeof(own_path), "%s", info.dli_fname);
    memcpy(&table, entry(), sizeof(table));
    table.operator_library = own_path;
    return &table;
}

const char* diopiGetVendorName(void) { return "caller"; }

static void say_size(const char* name, diopiSize_t size) {
    say(" %s=", name);
    for (int64_t i = 0; i < size.len; ++i) say("%s%ld", i ? "," : "", (long)size.data[i]);
}

static void describe(diopiTensorHandle_t th) {
    void *data = NULL, *storage = NULL;
    const void* constant = NULL;
    diopiSize_t shape = {0}, stride = {0};
    diopiDtype_t dtype = diopi_dtype_unsupported;
    diopiDevice_t device = diopi_host;
    int64_t numel = -1, item = -1, offset = -1;
    size_t bytes = 0;
    diopiDeviceIndex_t index = -9;
    bool sparse = true;
    diopiConstTensorHandle_t part = NULL;
    int failures = diopiGetTensorData(th, &data) + diopiGetTensorDataConst(th, &constant) + diopiGetTensorShape(th, &shape) +
                   diopiGetTensorStride(th, &stride) + diopiGetTensorDtype(th, &dtype) + diopiGetTensorDevice(th, &device) +
                   diopiGetTensorNumel(th, &numel) + diopiGetTensorElemSize(th, &item) + diopiGetTensorStoragePtr(th, &storage) +
                   diopiGetTensorStorageOffset(th, &offset) + diopiGetTensorStorageNbytes(th, &bytes) +
                   diopiGetTensorDeviceIndex(th, &index) + diopiIsTensorSparse(th, &sparse);
    say_size("shape", shape);
    say_size("stride", stride);
    say(" dtype=%d device=%d numel=%ld item=%ld offset=%ld bytes=%zu index=%d sparse=%d", (int)dtype, (int)device, (long)numel, (long)item,
        (long)offset, bytes, (int)index, (int)sparse);
    const int parts = (diopiGetTensorCrowIndices(th, &part) == 0) + (diopiGetTensorColIndices(th, &part) == 0) +
                      (diopiGetTensorValues(th, &part) == 0);
    say(" parts=%d failures=%d", parts, failures);
    say(" place=%s", data == constant && (numel == 0 || (char*)data - (char*)storage == offset * item) ? "right" : "wrong");
}

static diopiTensorHandle_t required(diopiContextHandle_t ctx, const char* name, int64_t dims, const int64_t* shape, int64_t strides,
                                    const int64_t* stride, int dtype, int device) {
    const diopiSize_t size = {shape, dims}, step = {stride, strides};
    diopiTensorHandle_t th = (diopiTensorHandle_t)&mode; /* an error must not leave this */
    const diopiError_t code = diopiRequireTensor(ctx, &th, &size, stride ? &step : NULL, (diopiDtype_t)dtype, (diopiDevice_t)device);
    say("%s:", name);
    if (code == diopiSuccess && th) describe(th);
    else say(" error, %s", th ? "but a tensor" : "no tensor");
    say("\n");
    return code == diopiSuccess ? th : NULL;
}

static void require_all(diopiContextHandle_t ctx) {
    const int64_t two_three[] = {2, 3}, one_two[] = {1, 2}, none[] = {0, 4}, five[] = {5}, negative[] = {2, -3}, back[] = {-1, 2};
    const int64_t huge[] = {INT64_C(1) << 40, INT64_C(1) << 40}, large[] = {INT64_C(1) << 45};
    required(ctx, "plain", 2, two_three, 0, NULL, diopi_dtype_float32, diopi_device);
    required(ctx, "strided", 2, two_three, 2, one_two, diopi_dtype_float16, diopi_device);
    required(ctx, "empty", 2, none, 0, NULL, diopi_dtype_bool, diopi_device);
    required(ctx, "scalar", 0, NULL, 0, NULL, diopi_dtype_complex64, diopi_device);
    diopiTensorHandle_t host = required(ctx, "host", 1, five, 0, NULL, diopi_dtype_int64, diopi_host);
    void* data = NULL;
    if (host && diopiGetTensorData(host, &data) == diopiSuccess) memset(data, 7, 40); /* host memory can be touched */
    required(ctx, "negative", 2, negative, 0, NULL, diopi_dtype_float32, diopi_device);
    required(ctx, "backwards", 2, two_three, 2, back, diopi_dtype_float32, diopi_device);
    required(ctx, "overflowing", 2, huge, 0, NULL, diopi_dtype_float32, diopi_device);
    required(ctx, "larger than the device", 1, large, 0, NULL, diopi_dtype_float32, diopi_device);
    required(ctx, "no dtype", 1, five, 0, NULL, diopi_dtype_unsupported, diopi_device);
    required(ctx, "unknown dtype", 1, five, 0, NULL, 77, diopi_device);
    required(ctx, "unknown device", 1, five, 0, NULL, diopi_dtype_float32, 7);
    required(ctx, "fewer strides", 2, two_three, 1, five, diopi_dtype_float32, diopi_device);
    required(ctx, "negative count", -1, five, 0, NULL, diopi_dtype_float32, diopi_device);
    required(ctx, "too many", 1000, five, 0, NULL, diopi_dtype_float32, diopi_device);
    required(ctx, "no numbers", 2, NULL, 0, NULL, diopi_dtype_float32, diopi_device);
    diopiTensorHandle_t buffer = NULL;
    say("buffer:");
    if (diopiRequireBuffer(ctx, &buffer, 100, diopi_device) == diopiSuccess) describe(buffer);
    say("\nbuffer of -1: %d\n", diopiRequireBuffer(ctx, &buffer, -1, diopi_device) != diopiSuccess);
    say("buffer of 0: %d\n", diopiRequireBuffer(ctx, &buffer, 0, diopi_host) == diopiSuccess && buffer);
}

/* All of them stay valid, each with its own memory. */
static void require_many(diopiContextHandle_t ctx) {
    diopiTensorHandle_t made[100];
    int right = 0;
    for (int64_t i = 0; i < 100; ++i) {
        const diopiSize_t size = {&i, 1};
        diopiRequireTensor(ctx, &made[i], &size, NULL, diopi_dtype_int32, i % 2 ? diopi_host : diopi_device);
    }
    for (int i = 0; i < 100; ++i) {
        int64_t numel = -1;
        diopiGetTensorNumel(made[i], &numel);
        right += numel == i;
    }
    say("%d right", right);
}

#define REFUSED(call) say("%s", (call) == diopiSuccess ? " " #call : "")
/* Every function without each of its arguments: what is said is what was accepted. */
static void without_arguments(diopiContextHandle_t ctx, diopiTensorHandle_t th) {
    void* any = NULL;
    const void* constant = NULL;
    diopiSize_t size = {0};
    diopiDtype_t dtype;
    diopiDevice_t device;
    int64_t number;
    size_t bytes;
    diopiDeviceIndex_t index;
    diopiConstTensorHandle_t part;
    diopiTensorHandle_t made = NULL;
    diopiStreamHandle_t stream;
    bool flag;
    REFUSED(diopiGetTensorData(NULL, &any));
    REFUSED(diopiGetTensorData(th, NULL));
    REFUSED(diopiGetTensorDataConst(NULL, &constant));
    REFUSED(diopiGetTensorDataConst(th, NULL));
    REFUSED(diopiGetTensorShape(NULL, &size));
    REFUSED(diopiGetTensorShape(th, NULL));
    REFUSED(diopiGetTensorStride(NULL, &size));
    REFUSED(diopiGetTensorStride(th, NULL));
    REFUSED(diopiGetTensorDtype(NULL, &dtype));
    REFUSED(diopiGetTensorDtype(th, NULL));
    REFUSED(diopiGetTensorDevice(NULL, &device));
    REFUSED(diopiGetTensorDevice(th, NULL));
    REFUSED(diopiGetTensorNumel(NULL, &number));
    REFUSED(diopiGetTensorNumel(th, NULL));
    REFUSED(diopiGetTensorElemSize(NULL, &number));
    REFUSED(diopiGetTensorElemSize(th, NULL));
    REFUSED(diopiGetTensorStoragePtr(NULL, &any));
    REFUSED(diopiGetTensorStoragePtr(th, NULL));
    REFUSED(diopiGetTensorStorageOffset(NULL, &number));
    REFUSED(diopiGetTensorStorageOffset(th, NULL));
    REFUSED(diopiGetTensorStorageNbytes(NULL, &bytes));
    REFUSED(diopiGetTensorStorageNbytes(th, NULL));
    REFUSED(diopiGetTensorDeviceIndex(NULL, &index));
    REFUSED(diopiGetTensorDeviceIndex(th, NULL));
    REFUSED(diopiGetTensorCrowIndices(NULL, &part));
    REFUSED(diopiGetTensorCrowIndices(th, NULL));
    REFUSED(diopiGetTensorColIndices(NULL, &part));
    REFUSED(diopiGetTensorColIndices(th, NULL));
    REFUSED(diopiGetTensorValues(NULL, &part));
    REFUSED(diopiGetTensorValues(th, NULL));
    REFUSED(diopiIsTensorSparse(NULL, &flag));
    REFUSED(diopiIsTensorSparse(th, NULL));
    REFUSED(diopiGetCurrentDeviceIndex(NULL));
    REFUSED(diopiGetStream(NULL, &stream));
    REFUSED(diopiGetStream(ctx, NULL));
    REFUSED(diopiRequireTensor(NULL, &made, &size, NULL, diopi_dtype_int8, diopi_device));
    REFUSED(diopiRequireTensor(ctx, NULL, &size, NULL, diopi_dtype_int8, diopi_device));
    REFUSED(diopiRequireTensor(ctx, &made, NULL, NULL, diopi_dtype_int8, diopi_device));
    REFUSED(diopiRequireBuffer(NULL, &made, 1, diopi_device));
    REFUSED(diopiRequireBuffer(ctx, NULL, 1, diopi_device));
    REFUSED(diopiGeneratorGetState(ctx, NULL, &made));
    REFUSED(diopiGeneratorSetState(NULL, th));
    REFUSED(diopiGeneratorGetSeedAndOffset(NULL, (uint64_t*)&number, (uint64_t*)&number));
    REFUSED(diopiGeneratorSetSeedAndOffset(NULL, 1, 2));
    REFUSED(diopiRecordStart(NULL, &any));
    REFUSED(diopiRecordStart("name", NULL));
    REFUSED(diopiRecordEnd(NULL));
    say(" done");
}

static void environment(diopiContextHandle_t ctx) {
    diopiStreamHandle_t stream = NULL, again = NULL;
    diopiDeviceIndex_t index = -9;
    void *outer = NULL, *inner = NULL;
    const int codes = diopiGetStream(ctx, &stream) + diopiGetStream(ctx, &again) + diopiGetCurrentDeviceIndex(&index);
    say("stream=%d same=%d device=%d codes=%d version=%s", stream != NULL, stream == again, (int)index, codes, diopiGetVersion());
    const int records = diopiRecordStart("outer", &outer) + diopiRecordStart("inner", &inner);
    say(" records=%d open=%d", records, outer && inner && outer != inner);
    const int ends = diopiRecordEnd(&inner) + diopiRecordEnd(&outer);
    say(" ends=%d closed=%d", ends, !outer && !inner);
}

diopiError_t diopiExp(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) {
    diopiTensorHandle_t buffer = NULL;
    diopiTensorHandle_t th = (diopiTensorHandle_t)input;
    used = 0;
    report[0] = 0;
    if (!strcmp(mode, "describe")) describe(th);
    if (!strcmp(mode, "require")) require_all(ctx);
    if (!strcmp(mode, "many")) require_many(ctx);
    if (!strcmp(mode, "without")) without_arguments(ctx, th);
    if (!strcmp(mode, "environment")) environment(ctx);
    if (!strcmp(mode, "workspace")) say("%d", diopiRequireBuffer(ctx, &buffer, 1 << 20, diopi_device) == diopiSuccess);
    return diopiSuccess;
}

static bool same(diopiTensorHandle_t a, diopiTensorHandle_t b) {
    void *left = NULL, *right = NULL;
    int64_t count = -1, other = -2;
    diopiGetTensorData(a, &left);
    diopiGetTensorData(b, &right);
    diopiGetTensorNumel(a, &count);
    diopiGetTensorNumel(b, &other);
    return count == other && memcmp(left, right, (size_t)count) == 0;
}

diopiError_t diopiUniformInp(diopiContextHandle_t ctx, diopiTensorHandle_t inout, double from, double to,
                             diopiGeneratorHandle_t generator) {
    diopiTensorHandle_t before = NULL, after = NULL;
    uint64_t seed = 0, offset = 9, seed_again = 1, offset_again = 9;
    diopiDevice_t device = diopi_device;
    diopiDtype_t dtype = diopi_dtype_unsupported;
    used = 0;
    report[0] = 0;
    int codes = diopiGeneratorGetState(ctx, generator, &before) + diopiGeneratorGetSeedAndOffset(generator, &seed, &offset);
    diopiGetTensorDevice(before, &device);
    diopiGetTensorDtype(before, &dtype);
    codes += diopiGeneratorSetSeedAndOffset(generator, 123, 0) + diopiGeneratorGetSeedAndOffset(generator, &seed_again, &offset_again);
    say("seed=%lu offset=%lu then %lu %lu device=%d dtype=%d", (unsigned long)seed, (unsigned long)offset, (unsigned long)seed_again,
        (unsigned long)offset_again, (int)device, (int)dtype);
    codes += diopiGeneratorSetState(generator, before) + diopiGeneratorGetState(ctx, generator, &after);
    say(" back=%d apart=%d codes=%d", same(before, after), before != after, codes);
    REFUSED(diopiGeneratorGetState(NULL, generator, &after));
    REFUSED(diopiGeneratorGetState(ctx, generator, NULL));
    REFUSED(diopiGeneratorSetState(generator, NULL));
    REFUSED(diopiGeneratorGetSeedAndOffset(generator, NULL, &offset));
    REFUSED(diopiGeneratorGetSeedAndOffset(generator, &seed, NULL));
    return diopiSuccess;
}
