/* A library with the faults that fuzzing must find. */
#include <diopi/functions.h>

diopiError_t diopiExp(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) {
    return input ? diopiSuccess : *(volatile int*)0; /* NULL is not looked at */
}

diopiError_t diopiSin(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) {
    void* data = 0;
    int64_t numel = 0, item = 0;
    if (diopiGetTensorData(out, &data) || diopiGetTensorNumel(out, &numel) || diopiGetTensorElemSize(out, &item))
        return diopiErrorOccurred;
    for (int64_t i = 0; i <= numel * item; ++i) ((char*)data)[i] = 0; /* one too far */
    return diopiSuccess;
}

diopiError_t diopiCos(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) {
    for (volatile int forever = 1; forever && !out;) {
    }
    return diopiSuccess;
}

diopiError_t diopiTan(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) {
    return out && input ? diopiSuccess : diopiErrorOccurred; /* this one is right */
}
