/* Kernels of a chip whose modules are shared libraries of C functions, as the simulated chip's are.
 *
 *     #include <dipu/host_kernel.h>
 *     DIPU_HOST_KERNEL(scale) {
 *         float* x = (float*)call->host_alias(DIPU_ARGUMENT(call, 0, void*));
 *         const float factor = DIPU_ARGUMENT(call, 1, float);
 *         for (uint32_t i = 0; i < call->grid.x; ++i) x[i] *= factor;
 *         return 0;
 *     }
 *
 * A kernel is called once for each launch, in the stream's order, perhaps on a thread of the stream's own, and goes over its grid
 * itself. It throws nothing; what is wrong it writes into `error` and returns other than 0: the next synchronisation reports it.
 * Valid as C11 and C++17.
 */
#ifndef DIPU_HOST_KERNEL_H_
#define DIPU_HOST_KERNEL_H_

#include "vendor.h"

typedef struct {
    size_t size; /* sizeof(dipuHostKernelCall) as the chip was built */
    dipuDim3 grid, block;
    void* shared_memory; /* `shared_memory` bytes of the launch, aligned to 64; NULL for none */
    uint32_t argument_count;
    void* const* arguments; /* copies that live as long as the call, aligned to 16 */
    /* The address under which the host may touch device memory. */
    void* (*host_alias)(const void* device_pointer);
    char* error;
    size_t error_size;
} dipuHostKernelCall;

typedef int (*dipuHostKernel)(const dipuHostKernelCall* call);

#define DIPU_ARGUMENT(call, index, type) (*(const type*)(call)->arguments[index])

#ifdef __cplusplus
#define DIPU_HOST_KERNEL(name) extern "C" __attribute__((visibility("default"))) int name(const dipuHostKernelCall* call)
#else
#define DIPU_HOST_KERNEL(name) __attribute__((visibility("default"))) int name(const dipuHostKernelCall* call)
#endif

#endif /* DIPU_HOST_KERNEL_H_ */
