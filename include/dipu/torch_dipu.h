/* What libtorch_dipu.so offers to other libraries of the process: the chip in use, and the streams on which torch queues its work, so
 * that nobody opens the vendor's library again. A library that links nothing finds the functions with dlsym, once torch_dipu is
 * imported: it lies in the process by the name libtorch_dipu.so (RTLD_NOLOAD).
 *
 * Functions that return int: 0, or not 0 and dipuTorchLastError tells this thread what was wrong. Valid as C11 and C++17.
 */
#ifndef DIPU_TORCH_DIPU_H_
#define DIPU_TORCH_DIPU_H_

#include "vendor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The vendor's table as torch_dipu uses it: of the size of this version, with NULL for what the vendor was built without. It loads the
 * vendor if nobody has yet; NULL if that fails. */
const dipuVendorTable* dipuTorchVendor(void);

int dipuTorchCurrentDevice(int* device);

/* The stream on which this thread queues its work for the device; -1: the current device. */
int dipuTorchCurrentStream(int device, void** stream);

/* Launches on that stream of the device where the module was loaded. `launch->stream` is not read. */
int dipuTorchLaunch(int device, void* function, const dipuKernelLaunch* launch);

/* Device memory of torch's pool for work that is queued on that stream; -1: the current device. DIPU_ERROR_MEMORY if there is not enough. The block is
 * what gives it back, on any thread, as soon as the work is queued. */
int dipuTorchAllocate(int device, size_t bytes, void** pointer, void** block);
void dipuTorchFree(void* block);

const char* dipuTorchLastError(void);

#ifdef __cplusplus
}
#endif
#endif /* DIPU_TORCH_DIPU_H_ */
