// The runtime of a published library that was compiled for the CPU: one device, whose memory is the host's. Work is done when a call
// returns. Host kernels get no alias of the memory (include/dipu/vendor.h), so that what the library lacks goes by copies, as on a chip.
#include <dipu/vendor.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace {

using Clock = std::chrono::steady_clock;
struct Stream {};
struct Event {
    Clock::time_point time;
    bool recorded = false;
};

constexpr size_t kAlignment = 64;
thread_local char problem[256];

int fail(int status, const char* text) {
    std::snprintf(problem, sizeof(problem), "%s", text);
    return status;
}
const char* last_error() { return problem; }

// Blocks by address: what is free is told to the caching allocator, and an address that is none is an error.
struct Memory {
    std::mutex mutex;
    std::map<void*, size_t> blocks;
    size_t used = 0;
    const size_t total = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
};
Memory& memory() {
    static auto* instance = new Memory;  // blocks may be freed while the process ends
    return *instance;
}

int features(uint64_t* bits) { return *bits = 0, DIPU_SUCCESS; }
int device_count(int* count) { return *count = 1, DIPU_SUCCESS; }
int device_properties(int, dipuDeviceProperties* properties) {
    *properties = {};
    std::snprintf(properties->name, sizeof(properties->name), "CPU");
    properties->total_memory = memory().total;
    properties->compute_units = static_cast<int32_t>(sysconf(_SC_NPROCESSORS_ONLN));
    return DIPU_SUCCESS;
}
int device_synchronize(int) { return DIPU_SUCCESS; }

int memory_allocate(int, size_t bytes, void** pointer) {
    const size_t size = (bytes / kAlignment + 1) * kAlignment;
    Memory& all = memory();
    std::lock_guard<std::mutex> lock(all.mutex);
    *pointer = size < bytes || size > all.total - std::min(all.used, all.total) ? nullptr : std::aligned_alloc(kAlignment, size);
    if (!*pointer) return fail(DIPU_ERROR_MEMORY, "the host has not so much memory");
    all.blocks.emplace(*pointer, size);
    all.used += size;
    return DIPU_SUCCESS;
}
int memory_free(int, void* pointer) {
    Memory& all = memory();
    std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.blocks.find(pointer);
    if (found == all.blocks.end()) return fail(DIPU_ERROR_VALUE, "this address was not allocated");
    all.used -= found->second;
    all.blocks.erase(found);
    std::free(pointer);
    return DIPU_SUCCESS;
}
int memory_info(int, size_t* free_bytes, size_t* total_bytes) {
    Memory& all = memory();
    std::lock_guard<std::mutex> lock(all.mutex);
    *total_bytes = all.total;
    *free_bytes = all.total - std::min(all.used, all.total);
    return DIPU_SUCCESS;
}
int pinned_allocate(size_t bytes, void** pointer) { return memory_allocate(0, bytes, pointer); }
int pinned_free(void* pointer) { return memory_free(0, pointer); }

int copy(void*, void* destination, const void* source, size_t bytes, int) {
    if (bytes) std::memmove(destination, source, bytes);
    return DIPU_SUCCESS;
}
int fill(void*, void* pointer, int byte, size_t bytes) {
    if (bytes) std::memset(pointer, byte, bytes);
    return DIPU_SUCCESS;
}

int stream_create(int, int, void** stream) { return *stream = new Stream, DIPU_SUCCESS; }
int stream_destroy(void* stream) { return delete static_cast<Stream*>(stream), DIPU_SUCCESS; }
int stream_synchronize(void*) { return DIPU_SUCCESS; }
int stream_query(void*) { return DIPU_SUCCESS; }
int stream_wait_event(void*, void*) { return DIPU_SUCCESS; }

int event_create(int, void** event) { return *event = new Event, DIPU_SUCCESS; }
int event_destroy(void* event) { return delete static_cast<Event*>(event), DIPU_SUCCESS; }
int event_record(void* event, void*) {
    *static_cast<Event*>(event) = {Clock::now(), true};
    return DIPU_SUCCESS;
}
int event_synchronize(void*) { return DIPU_SUCCESS; }
int event_query(void*) { return DIPU_SUCCESS; }
int event_elapsed(void* start, void* end, double* milliseconds) {
    const auto *from = static_cast<const Event*>(start), *to = static_cast<const Event*>(end);
    if (!from->recorded || !to->recorded) return fail(DIPU_ERROR_VALUE, "an event was not recorded");
    *milliseconds = std::chrono::duration<double, std::milli>(to->time - from->time).count();
    return DIPU_SUCCESS;
}

}  // namespace

#include "table.h"
