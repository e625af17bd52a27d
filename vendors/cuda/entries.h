// Entries of the vendor table that are not in runtime.cpp, and what entries have in common.
#pragma once
#include <cuda_runtime_api.h>
#include <dipu/vendor.h>

#include <exception>

#include "errors.h"
#include "stream.h"

namespace dipu_vendor {

// The status of a call of the runtime, with its message for the thread. An error that stays is told again by every call; what does not stay is
// forgotten here.
int status_of(cudaError_t error);
// DIPU_ERROR_NOT_READY is no failure of a query.
int answer_of(cudaError_t error);

// Every entry of the table: no exception leaves, the message stays with the thread.
template <class Body>
int guarded(Body&& body) {
    try {
        return body();
    } catch (const std::exception& error) {
        set_error(what(error));
        return DIPU_ERROR;
    }
}

// The calling thread works on the device until the end of the scope.
class OnDevice {
   public:
    explicit OnDevice(int device) : status_(cudaGetDevice(&previous_)) {
        if (status_ == cudaSuccess && previous_ != device) status_ = cudaSetDevice(device);
    }
    ~OnDevice() {
        int current = previous_;
        if (cudaGetDevice(&current) == cudaSuccess && current != previous_) (void)cudaSetDevice(previous_);
    }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;
    cudaError_t status() const { return status_; }

   private:
    int previous_ = 0;
    cudaError_t status_;
};

// `call()` with the device in force.
template <class Call>
int on_device(int device, Call&& call) {
    const OnDevice here(device);
    return status_of(here.status() == cudaSuccess ? call() : here.status());
}

// streams.cpp
int synchronize_device(int device);
int copy(void* stream, void* destination, const void* source, size_t bytes, int kind);
int fill(void* stream, void* pointer, int byte, size_t bytes);
int create_stream(int device, int priority, void** stream);
int destroy_stream(void* stream);
int synchronize_stream(void* stream);
int query_stream(void* stream);
int priority_range(int device, int* least, int* greatest);
int wait_event(void* stream, void* event);
int create_event(int device, void** event);
int create_event_with_flags(int device, uint32_t flags, void** event);
int destroy_event(void* event);
int record_event(void* event, void* stream);
int synchronize_event(void* event);
int query_event(void* event);
int elapsed(void* start, void* end, double* milliseconds);
int run_on_stream(void* stream, const char* name, dipuTask task, void (*destroy)(void*), void* argument);

// modules.cpp
int load_module(int device, const char* path, const void* image, size_t bytes, void** module);
int unload_module(void* module);
int function_of_module(void* module, const char* name, void** function);
int launch_kernel(void* function, const dipuKernelLaunch* launch);

// memory.cpp
int allocate(int device, size_t bytes, void** pointer);
int free_memory(int device, void* pointer);
int memory_info(int device, size_t* free_bytes, size_t* total_bytes);
int allocate_pinned(size_t bytes, void** pointer);
int free_pinned(void* pointer);
// Torch's kernels take their temporaries from the framework's pool, if there is one and torch.cuda has no memory yet.
void share_memory_pool();

}  // namespace dipu_vendor
