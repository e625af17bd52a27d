// The runtime of a published library that was compiled for CUDA: memory, streams and events of the CUDA runtime.
#include <cuda_runtime_api.h>
#include <dipu/vendor.h>

#include <cstdio>

namespace {

thread_local char problem[512];

int status(cudaError_t error) {
    if (error == cudaSuccess) return DIPU_SUCCESS;
    std::snprintf(problem, sizeof(problem), "%s: %s", cudaGetErrorName(error), cudaGetErrorString(error));
    cudaGetLastError();  // an error that is told here is not told again by the next call, unless it stays
    if (error == cudaErrorNotReady) return DIPU_ERROR_NOT_READY;
    if (error == cudaErrorMemoryAllocation) return DIPU_ERROR_MEMORY;
    return error == cudaErrorInvalidValue ? DIPU_ERROR_VALUE : DIPU_ERROR;
}
const char* last_error() { return problem; }

template <class Call>
int on(int device, Call&& call) {
    const int chosen = status(cudaSetDevice(device));
    return chosen ? chosen : status(call());
}

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

int features(uint64_t* bits) { return *bits = DIPU_FEATURE_ASYNCHRONOUS, DIPU_SUCCESS; }
int device_count(int* count) {
    const int answer = status(cudaGetDeviceCount(count));
    if (answer) *count = 0;
    return answer;
}
int device_properties(int device, dipuDeviceProperties* properties) {
    cudaDeviceProp found;
    const int answer = status(cudaGetDeviceProperties(&found, device));
    if (answer) return answer;
    *properties = {};
    std::snprintf(properties->name, sizeof(properties->name), "%s", found.name);
    properties->total_memory = found.totalGlobalMem;
    properties->compute_units = found.multiProcessorCount;
    properties->major = found.major;
    properties->minor = found.minor;
    return DIPU_SUCCESS;
}
int device_synchronize(int device) { return on(device, [] { return cudaDeviceSynchronize(); }); }

int memory_allocate(int device, size_t bytes, void** pointer) {
    return on(device, [&] { return cudaMalloc(pointer, bytes ? bytes : 1); });
}
int memory_free(int device, void* pointer) { return on(device, [&] { return cudaFree(pointer); }); }
int memory_info(int device, size_t* free_bytes, size_t* total_bytes) {
    return on(device, [&] { return cudaMemGetInfo(free_bytes, total_bytes); });
}
int pinned_allocate(size_t bytes, void** pointer) { return status(cudaMallocHost(pointer, bytes ? bytes : 1)); }
int pinned_free(void* pointer) { return status(cudaFreeHost(pointer)); }
int copy(void* stream, void* destination, const void* source, size_t bytes, int) {
    // the direction is in the addresses; a copy from or to pageable memory waits by itself where it must
    return status(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, stream_of(stream)));
}
int fill(void* stream, void* pointer, int byte, size_t bytes) {
    return status(cudaMemsetAsync(pointer, byte, bytes, stream_of(stream)));
}

int stream_create(int device, int priority, void** stream) {
    cudaStream_t made = nullptr;
    const int answer = on(device, [&] { return cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, priority); });
    *stream = made;
    return answer;
}
int stream_destroy(void* stream) { return status(cudaStreamDestroy(stream_of(stream))); }
int stream_synchronize(void* stream) { return status(cudaStreamSynchronize(stream_of(stream))); }
int stream_query(void* stream) { return status(cudaStreamQuery(stream_of(stream))); }
int stream_wait_event(void* stream, void* event) { return status(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0)); }

int event_create(int device, void** event) {
    cudaEvent_t made = nullptr;
    const int answer = on(device, [&] { return cudaEventCreate(&made); });
    *event = made;
    return answer;
}
int event_destroy(void* event) { return status(cudaEventDestroy(event_of(event))); }
int event_record(void* event, void* stream) { return status(cudaEventRecord(event_of(event), stream_of(stream))); }
int event_synchronize(void* event) { return status(cudaEventSynchronize(event_of(event))); }
int event_query(void* event) { return status(cudaEventQuery(event_of(event))); }
int event_elapsed(void* start, void* end, double* milliseconds) {
    float elapsed = 0;
    const int answer = status(cudaEventElapsedTime(&elapsed, event_of(start), event_of(end)));
    *milliseconds = elapsed;
    return answer;
}

}  // namespace

#include "table.h"
