// The vendor table of NVIDIA cards: errors, abilities, devices.
#include <cstdio>
#include <cstring>

#include "chip.h"
#include "entries.h"

namespace dipu_vendor {

int status_of(cudaError_t error) {
    if (error == cudaSuccess) return DIPU_SUCCESS;
    set_error(std::string("CUDA: ") + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")");
    (void)cudaGetLastError();  // the next call is not to blame
    if (error == cudaErrorMemoryAllocation) return DIPU_ERROR_MEMORY;
    return error == cudaErrorInvalidValue || error == cudaErrorInvalidDevice ? DIPU_ERROR_VALUE : DIPU_ERROR;
}

int answer_of(cudaError_t error) {
    if (error != cudaErrorNotReady) return status_of(error);
    (void)cudaGetLastError();
    return DIPU_ERROR_NOT_READY;
}

namespace {

int count_devices(int* count) {
    *count = 0;
    const cudaError_t error = cudaGetDeviceCount(count);
    if (error == cudaSuccess && *count > 0) return DIPU_SUCCESS;
    (void)cudaGetLastError();
    set_error(std::string("the vendor 'cuda' finds no NVIDIA card: ") + (error == cudaSuccess ? "there are 0" : cudaGetErrorString(error)) +
              ". It needs a card that this process may use (CUDA_VISIBLE_DEVICES) and its driver; DIPU_DEVICE=host simulates a chip.");
    return DIPU_ERROR;
}

int properties(int device, dipuDeviceProperties* out) {
    cudaDeviceProp found{};
    if (const int status = status_of(cudaGetDeviceProperties(&found, device))) return status;
    std::snprintf(out->name, sizeof(out->name), "%s", found.name);
    out->total_memory = found.totalGlobalMem;
    out->compute_units = found.multiProcessorCount;
    out->major = found.major;
    out->minor = found.minor;
    return DIPU_SUCCESS;
}

int features(uint64_t* bits) {
    *bits = DIPU_FEATURE_ASYNCHRONOUS | DIPU_FEATURE_FLASH_ATTENTION | DIPU_FEATURE_COUNTER_RANDOM | DIPU_FEATURE_WIDE_STATISTICS;
    return DIPU_SUCCESS;
}

const dipuVendorTable& table() {
    static const dipuVendorTable filled = [] {
        dipuVendorTable t{};  // no alias and no communicator yet: those entries stay NULL, and the framework goes through the host
        t.size = sizeof(t);
        t.abi = DIPU_VENDOR_ABI;
        t.name = kVendorName;
        t.description = "NVIDIA cards by the CUDA runtime, operators by torch's CUDA kernels";
        t.last_error = last_error;
        t.features = features;
        t.device_count = count_devices;
        t.device_properties = properties;
        t.device_synchronize = synchronize_device;
        t.memory_allocate = allocate;
        t.memory_free = free_memory;
        t.memory_info = memory_info;
        t.pinned_allocate = allocate_pinned;
        t.pinned_free = free_pinned;
        t.copy = copy;
        t.fill = fill;
        t.stream_create = create_stream;
        t.stream_destroy = destroy_stream;
        t.stream_synchronize = synchronize_stream;
        t.stream_query = query_stream;
        t.stream_wait_event = wait_event;
        t.event_create = create_event;
        t.event_destroy = destroy_event;
        t.event_record = record_event;
        t.event_synchronize = synchronize_event;
        t.event_query = query_event;
        t.event_elapsed = elapsed;
        t.stream_run = run_on_stream;
        t.module_load = load_module;
        t.module_unload = unload_module;
        t.module_function = function_of_module;
        t.kernel_launch = launch_kernel;
        t.stream_priority_range = priority_range;
        t.event_create_with_flags = create_event_with_flags;
        return t;
    }();
    return filled;
}

}  // namespace
}  // namespace dipu_vendor

extern "C" __attribute__((visibility("default"))) const dipuVendorTable* dipuGetVendorTable(void) { return &dipu_vendor::table(); }
