/* The runtime functions themselves. Nothing that is NULL or absurd gets past its check: the answer is an error code. */
#include <stdlib.h>
#include <string.h>

#include "../diopirt/runtime_table.h"
#include "records.h"
#include "required.h"

#define ASKED(condition, target, value)             \
    if (!(condition) || !(target)) return diopiErrorOccurred; \
    *(target) = (value);                            \
    return diopiSuccess

static const char* GetVersion(void) { return "DIOPI 1.2.0"; }

static diopiError_t GetTensorData(diopiTensorHandle_t th, void** data) { ASKED(is_tensor(th), data, th->data); }
static diopiError_t GetTensorDataConst(diopiConstTensorHandle_t th, const void** data) { ASKED(is_tensor(th), data, th->data); }
static diopiError_t GetTensorShape(diopiConstTensorHandle_t th, diopiSize_t* size) {
    ASKED(is_tensor(th), size, ((diopiSize_t){th->numbers, th->dims}));
}
static diopiError_t GetTensorStride(diopiConstTensorHandle_t th, diopiSize_t* stride) {
    ASKED(is_tensor(th), stride, ((diopiSize_t){th->numbers + th->dims, th->dims}));
}
static diopiError_t GetTensorDtype(diopiConstTensorHandle_t th, diopiDtype_t* dtype) { ASKED(is_tensor(th), dtype, th->dtype); }
static diopiError_t GetTensorDevice(diopiConstTensorHandle_t th, diopiDevice_t* device) { ASKED(is_tensor(th), device, th->device); }
static diopiError_t GetTensorNumel(diopiConstTensorHandle_t th, int64_t* numel) { ASKED(is_tensor(th), numel, th->numel); }
static diopiError_t GetTensorElemSize(diopiConstTensorHandle_t th, int64_t* itemsize) {
    ASKED(is_tensor(th), itemsize, direct_element_size(th->dtype));
}
static diopiError_t GetTensorStoragePtr(diopiConstTensorHandle_t th, void** storage) { ASKED(is_tensor(th), storage, th->storage); }
static diopiError_t GetTensorStorageOffset(diopiConstTensorHandle_t th, int64_t* offset) { ASKED(is_tensor(th), offset, th->offset); }
static diopiError_t GetTensorStorageNbytes(diopiConstTensorHandle_t th, size_t* nbytes) { ASKED(is_tensor(th), nbytes, th->nbytes); }
static diopiError_t GetTensorDeviceIndex(diopiConstTensorHandle_t th, diopiDeviceIndex_t* index) {
    ASKED(is_tensor(th), index, (diopiDeviceIndex_t)th->device_index);
}

static diopiError_t GetTensorCrowIndices(diopiConstTensorHandle_t th, diopiConstTensorHandle_t* part) {
    ASKED(is_tensor(th) && th->crow_indices, part, th->crow_indices);
}
static diopiError_t GetTensorColIndices(diopiConstTensorHandle_t th, diopiConstTensorHandle_t* part) {
    ASKED(is_tensor(th) && th->col_indices, part, th->col_indices);
}
static diopiError_t GetTensorValues(diopiConstTensorHandle_t th, diopiConstTensorHandle_t* part) {
    ASKED(is_tensor(th) && th->values, part, th->values);
}
static diopiError_t IsTensorSparse(diopiConstTensorHandle_t th, bool* is_sparse) {
    ASKED(is_tensor(th), is_sparse, th->crow_indices != NULL);
}

/* One device for each loaded library, its first; the function has no context to ask. */
static diopiError_t GetCurrentDeviceIndex(diopiDeviceIndex_t* index) { ASKED(true, index, 0); }
static diopiError_t GetStream(diopiContextHandle_t ctx, diopiStreamHandle_t* stream) {
    ASKED(is_context(ctx), stream, ctx->machine->stream);
}

static diopiError_t GeneratorGetState(diopiContextHandle_t ctx, diopiConstGeneratorHandle_t th, diopiTensorHandle_t* data) {
    if (!is_generator(th)) return diopiErrorOccurred;
    const diopiError_t status = direct_require_buffer(ctx, data, (int64_t)th->bytes, diopi_host);
    if (status == diopiSuccess && th->bytes) memcpy((*data)->data, th->state, th->bytes);
    return status;
}

static diopiError_t GeneratorSetState(diopiGeneratorHandle_t th, diopiConstTensorHandle_t state) {
    if (!is_generator(th) || !is_tensor(state)) return diopiErrorOccurred;
    const int64_t element = direct_element_size(state->dtype);
    if (direct_extent(state->dims, state->numbers, state->numbers + state->dims) != state->numel) return diopiErrorOccurred;
    const size_t bytes = (size_t)(state->numel * element);
    unsigned char* copy = malloc(bytes ? bytes : 1);
    if (!copy || (bytes && !state->data)) {
        free(copy);
        return diopiErrorOccurred;
    }
    if (state->device == diopi_host) {
        if (bytes) memcpy(copy, state->data, bytes);
    } else if (diopi_direct_read(th->machine, copy, state->data, bytes)) {
        free(copy);
        return diopiErrorOccurred;
    }
    free(th->state);
    th->state = copy;
    th->bytes = bytes;
    return diopiSuccess;
}

static diopiError_t GeneratorGetSeedAndOffset(diopiGeneratorHandle_t th, uint64_t* seed, uint64_t* offset) {
    if (!is_generator(th) || !seed || !offset) return diopiErrorOccurred;
    *seed = th->seed;
    *offset = th->offset;
    return diopiSuccess;
}
static diopiError_t GeneratorSetSeedAndOffset(diopiGeneratorHandle_t th, uint64_t seed, uint64_t offset) {
    if (!is_generator(th)) return diopiErrorOccurred;
    th->seed = seed;
    th->offset = offset;
    return diopiSuccess;
}

/* Nobody listens here; a record is a piece of memory, so that a missing or a second end shows in a memory checker. */
static diopiError_t RecordStart(const char* record_name, void** record) {
    if (!record_name || !record) return diopiErrorOccurred;
    *record = malloc(1);
    return *record ? diopiSuccess : diopiErrorOccurred;
}
static diopiError_t RecordEnd(void** record) {
    if (!record) return diopiErrorOccurred;
    free(*record);
    *record = NULL;
    return diopiSuccess;
}

static const diopiRuntimeTable ours = {
    GetVersion, GetTensorData, GetTensorDataConst, GetTensorShape, GetTensorStride, GetTensorDtype, GetTensorDevice, GetTensorNumel,
    GetTensorElemSize, GetTensorStoragePtr, GetTensorStorageOffset, GetTensorStorageNbytes, GetTensorDeviceIndex, GetTensorCrowIndices,
    GetTensorColIndices, GetTensorValues, IsTensorSparse, GetCurrentDeviceIndex, GetStream, direct_require_tensor, direct_require_buffer,
    GeneratorGetState, GeneratorSetState, GeneratorGetSeedAndOffset, GeneratorSetSeedAndOffset, RecordStart, RecordEnd,
};

int diopi_direct_installed(void) { return diopi_runtime.GetVersion == GetVersion; }

int diopi_direct_install(void) {
    if (diopi_direct_installed()) return 0;
    if (diopi_runtime.GetVersion || diopi_runtime.GetTensorData)
        return direct_fail("the runtime functions of DIOPI belong to a framework in this process");
    diopi_runtime = ours;
    return 0;
}

void diopi_direct_uninstall(void) {
    const diopiRuntimeTable none = {0};
    if (diopi_direct_installed()) diopi_runtime = none;
}
