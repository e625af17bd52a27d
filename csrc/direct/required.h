/* diopiRequireTensor and diopiRequireBuffer: memory that lives as long as the call, watched if the caller wants it. */
#ifndef DIOPI_DIRECT_REQUIRED_H_
#define DIOPI_DIRECT_REQUIRED_H_

#include "records.h"

diopiError_t direct_require_tensor(diopiContextHandle_t ctx, diopiTensorHandle_t* tensor, const diopiSize_t* size,
                                   const diopiSize_t* stride, diopiDtype_t dtype, diopiDevice_t device);
diopiError_t direct_require_buffer(diopiContextHandle_t ctx, diopiTensorHandle_t* tensor, int64_t num_bytes, diopiDevice_t device);

#endif /* DIOPI_DIRECT_REQUIRED_H_ */
