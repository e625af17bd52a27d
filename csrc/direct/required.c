/* Memory that a library requires during its call: allocated, filled and guarded here, freed with its context. */
#include "required.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A slot in the context's list. */
static bool reserve(diopiContextHandle_t ctx) {
    if (ctx->count < ctx->capacity) return true;
    const size_t capacity = ctx->capacity ? 2 * ctx->capacity : 8;
    diopiTensorHandle_t* owned = realloc(ctx->owned, capacity * sizeof(*owned));
    if (!owned) return false;
    ctx->owned = owned;
    ctx->capacity = capacity;
    return true;
}

static void contiguous(int64_t dims, const int64_t* shape, int64_t* stride) {
    int64_t step = 1;
    for (int64_t i = dims - 1; i >= 0; --i) {
        stride[i] = step;
        if (shape[i] > 1 && __builtin_mul_overflow(step, shape[i], &step)) step = 1; /* an empty tensor's strides do not matter */
    }
}

void direct_release(diopiMachine* machine, diopiDevice_t device, void* block) {
    if (device == diopi_host)
        free(block);
    else if (block && diopi_direct_free(machine, block) != 0)
        fprintf(stderr, "diopi: %s\n", diopi_direct_problem());
}

static int fill(diopiMachine* machine, diopiDevice_t device, char* at, int byte, size_t bytes) {
    if (device != diopi_host) return diopi_direct_fill(machine, at, byte, bytes);
    memset(at, byte, bytes);
    return 0;
}

/* Memory of `bytes` (more than none) with the guards around it; NULL if it cannot be had. */
static char* allocated(diopiMachine* machine, diopiDevice_t device, size_t bytes, size_t guard) {
    void* whole = NULL;
    if (device == diopi_host)
        whole = malloc(bytes + 2 * guard);
    else if (diopi_direct_allocate(machine, bytes + 2 * guard, &whole) != 0)
        return NULL;
    char* block = whole;
    if (!block || machine->fill < 0) return block;
    if (fill(machine, device, block, GUARD_PATTERN, guard) == 0 && fill(machine, device, block + guard, machine->fill, bytes) == 0 &&
        fill(machine, device, block + guard + bytes, GUARD_PATTERN, guard) == 0 &&
        (device == diopi_host || diopi_direct_synchronize(machine) == 0)) /* the library may write to it at once */
        return block;
    direct_release(machine, device, block);
    return NULL;
}

diopiError_t direct_require_tensor(diopiContextHandle_t ctx, diopiTensorHandle_t* tensor, const diopiSize_t* size,
                                   const diopiSize_t* stride, diopiDtype_t dtype, diopiDevice_t device) {
    if (tensor) *tensor = NULL;
    if (!is_context(ctx) || !tensor || !size || (device != diopi_host && device != diopi_device)) return diopiErrorOccurred;
    const bool strided = stride && stride->data;
    if (direct_numel(size->len, size->data) < 0 || (strided && stride->len != size->len)) return diopiErrorOccurred;
    const int64_t element = direct_element_size(dtype);
    if (element == 0) return diopiDtypeNotSupported;
    int64_t own[MOST_DIMS], bytes = 0;
    if (!strided) contiguous(size->len, size->data, own);
    const int64_t extent = direct_extent(size->len, size->data, strided ? stride->data : own);
    if (extent < 0 || __builtin_mul_overflow(extent, element, &bytes) || !reserve(ctx)) return diopiErrorOccurred;
    diopiMachine* machine = ctx->machine;
    const size_t guard = machine->fill < 0 ? 0 : GUARD_BYTES;
    char* block = bytes > 0 ? allocated(machine, device, (size_t)bytes, guard) : NULL;
    if (bytes > 0 && !block) return diopiErrorOccurred;
    void* memory = block ? block + guard : NULL;
    diopiTensorHandle_t th = diopi_direct_tensor_create(memory, size->len, size->data, strided ? stride->data : own, dtype, device,
                                                        device == diopi_host ? -1 : machine->device, memory, 0, bytes);
    if (!th) {
        direct_release(machine, device, block);
        return diopiErrorOccurred;
    }
    th->block = block;
    th->guard = guard;
    ctx->owned[ctx->count++] = th;
    *tensor = th;
    return diopiSuccess;
}

diopiError_t direct_require_buffer(diopiContextHandle_t ctx, diopiTensorHandle_t* tensor, int64_t num_bytes, diopiDevice_t device) {
    const diopiSize_t size = {&num_bytes, 1};
    return direct_require_tensor(ctx, tensor, &size, NULL, diopi_dtype_uint8, device);
}

/* Bytes of one guard that are not what they were. */
static int damage(diopiMachine* machine, diopiDevice_t device, const char* guard, int64_t* count) {
    char now[GUARD_BYTES];
    if (device == diopi_host)
        memcpy(now, guard, GUARD_BYTES);
    else if (diopi_direct_read(machine, now, guard, GUARD_BYTES) != 0)
        return 1;
    for (size_t i = 0; i < GUARD_BYTES; ++i) *count += now[i] != GUARD_PATTERN;
    return 0;
}

int diopi_direct_required_damage(diopiContextHandle_t ctx, diopiConstTensorHandle_t th, int64_t* front, int64_t* behind) {
    if (!is_context(ctx) || !is_tensor(th) || !front || !behind) return direct_fail("no context, no tensor, or no pointer for the answer");
    *front = *behind = 0;
    if (!th->block || th->guard == 0) return 0;
    const char* first = th->block;
    return damage(ctx->machine, th->device, first, front) || damage(ctx->machine, th->device, first + th->guard + th->nbytes, behind);
}
