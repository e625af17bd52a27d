/* Kernels for test_kernels.py. */
#include <dipu/host_kernel.h>
#include <stdio.h>
#include <string.h>

DIPU_HOST_KERNEL(scale) {
    float* x = (float*)call->host_alias(DIPU_ARGUMENT(call, 0, void*));
    const float factor = DIPU_ARGUMENT(call, 1, float);
    for (uint32_t i = 0; i < call->grid.x; ++i) x[i] *= factor;
    return 0;
}

typedef struct {
    int32_t a;
    double b;
} Pair;

/* Writes what it was given, as numbers. */
DIPU_HOST_KERNEL(describe) {
    double* out = (double*)call->host_alias(DIPU_ARGUMENT(call, 0, void*));
    const Pair pair = DIPU_ARGUMENT(call, 4, Pair);
    const double values[] = {call->grid.x, call->grid.y, call->grid.z, call->block.x, call->block.y, call->block.z, call->argument_count,
                             (double)DIPU_ARGUMENT(call, 1, int64_t), DIPU_ARGUMENT(call, 2, double), DIPU_ARGUMENT(call, 3, _Bool),
                             pair.a, pair.b, (double)((uintptr_t)call->shared_memory % 64), call->size == sizeof(*call)};
    memset(call->shared_memory, 1, 100);
    memcpy(out, values, sizeof(values));
    return 0;
}

DIPU_HOST_KERNEL(refuse) {
    snprintf(call->error, call->error_size, "number %d is not allowed", DIPU_ARGUMENT(call, 0, int32_t));
    return 1;
}
