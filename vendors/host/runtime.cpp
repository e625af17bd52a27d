// The vendor table of the simulated chip (include/dipu/vendor.h): devices, memory, settings, and the table itself.
#include <dipu/vendor.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "device_memory.h"
#include "entries.h"
#include "faults.h"
#include "kernel.h"
#include "queue.h"

namespace dipu_vendor {
namespace {

bool numerics_from(const std::string& text) {
    if (text == "reordered") return true;
    if (text == "plain") return false;
    throw std::invalid_argument("numerics '" + text + "': expected plain or reordered");
}

std::atomic<bool> alias_on{flag_from("DIPU_HOST_ALIAS", true)};

std::atomic<bool>& reordered_on() {
    static std::atomic<bool> on{[] {
        const char* text = std::getenv("DIPU_HOST_NUMERICS");
        return text && *text ? numerics_from(text) : false;
    }()};
    return on;
}

int count_devices(int* count) {
    return guarded([&] {
        (void)device_capacity();
        (void)reordered_on().load();
        *count = device_count();
        return DIPU_SUCCESS;
    });
}

int properties(int device, dipuDeviceProperties* out) {
    return guarded([&] {
        std::snprintf(out->name, sizeof(out->name), "simulated chip %d", device);
        out->total_memory = device_capacity();
        out->compute_units = 1;
        out->major = 1;
        out->minor = 0;
        return DIPU_SUCCESS;
    });
}

// Sizes of live blocks, so that a free gives back what was charged.
struct Blocks {
    std::mutex mutex;
    std::unordered_map<void*, size_t> sizes;
};
Blocks& blocks() {
    static auto* instance = new Blocks;
    return *instance;
}

// Large blocks lie on huge pages where the system has them: fewer page faults and address translations.
void* host_memory(size_t bytes) {
    constexpr size_t kHugePage = size_t(2) << 20;
    void* host = nullptr;
    const bool large = bytes >= kHugePage;
    if (posix_memalign(&host, large ? kHugePage : 64, bytes ? bytes : 1) != 0) return nullptr;
    if (large) madvise(host, bytes & ~(kHugePage - 1), MADV_HUGEPAGE);
    return host;
}

int allocate(int device, size_t bytes, void** pointer) {
    return guarded([&] {
        if (!charge(device, bytes)) {
            set_error("the device's memory is full");
            return DIPU_ERROR_MEMORY;
        }
        void* host = host_memory(bytes);
        if (!host) {
            discharge(device, bytes);
            set_error("the host that simulates the chip is out of memory");
            return DIPU_ERROR_MEMORY;
        }
        std::lock_guard<std::mutex> lock(blocks().mutex);
        blocks().sizes[host] = bytes;
        *pointer = tag(host, device);
        return DIPU_SUCCESS;
    });
}

int free_memory(int device, void* pointer) {
    return guarded([&] {
        void* host = untag(pointer);
        {
            std::lock_guard<std::mutex> lock(blocks().mutex);
            auto found = blocks().sizes.find(host);
            if (found == blocks().sizes.end()) {
                set_error("free of memory that was not allocated on this device");
                return DIPU_ERROR_VALUE;
            }
            discharge(device, found->second);
            blocks().sizes.erase(found);
        }
        std::free(host);
        return DIPU_SUCCESS;
    });
}

int memory_info(int device, size_t* free_bytes, size_t* total_bytes) {
    return guarded([&] {
        *total_bytes = device_capacity();
        const size_t used = device_used(device);
        *free_bytes = used < *total_bytes ? *total_bytes - used : 0;
        return DIPU_SUCCESS;
    });
}

int allocate_pinned(size_t bytes, void** pointer) {
    if (posix_memalign(pointer, 4096, bytes ? bytes : 1) == 0) return DIPU_SUCCESS;
    set_error("out of host memory");
    return DIPU_ERROR_MEMORY;
}

int free_pinned(void* pointer) {
    std::free(pointer);
    return DIPU_SUCCESS;
}

void* host_alias(const void* pointer) { return untag(pointer); }

int adopt(int device, void* host, size_t bytes, void** pointer) {
    if (!charge(device, bytes)) {
        set_error("the device's memory is full");
        return DIPU_ERROR_MEMORY;
    }
    *pointer = tag(host, device);
    return DIPU_SUCCESS;
}

int release(int device, void*, size_t bytes) {
    discharge(device, bytes);
    return DIPU_SUCCESS;
}

int features(uint64_t* bits) {
    *bits = 0;
    if (alias_on) *bits |= DIPU_FEATURE_ALIAS;
    if (alias_on && !reordered()) *bits |= DIPU_FEATURE_ALIAS_ATTENTION;
    if (asynchronous()) *bits |= DIPU_FEATURE_ASYNCHRONOUS;
    return DIPU_SUCCESS;
}

int alias_device_type(int32_t* type) {
    *type = 1;  // DLPack's kDLCPU
    return DIPU_SUCCESS;
}

constexpr const char* kOptions = "numerics, alias, async, delay_us, fault";

int unknown_option(const char* name) {
    set_error(std::string("unknown option '") + name + "'; known are " + kOptions);
    return DIPU_ERROR_VALUE;
}

int set_option(const char* name, const char* value) {
    return guarded([&] {
        const std::string option = name;
        const bool on = std::strcmp(value, "0") != 0 && std::strcmp(value, "false") != 0;
        if (option == "numerics")
            reordered_on() = numerics_from(value);
        else if (option == "alias")
            alias_on = on;
        else if (option == "async")
            set_asynchronous(on);
        else if (option == "delay_us")
            set_delay_us(std::atoll(value));
        else if (option == "fault")
            set_faults(value);
        else
            return unknown_option(name);
        return static_cast<int>(DIPU_SUCCESS);
    });
}

int get_option(const char* name, char* value, size_t size) {
    return guarded([&] {
        const std::string option = name;
        std::string text;
        if (option == "numerics")
            text = reordered() ? "reordered" : "plain";
        else if (option == "alias")
            text = alias_on ? "1" : "0";
        else if (option == "async")
            text = asynchronous() ? "1" : "0";
        else if (option == "delay_us")
            text = std::to_string(delay_us());
        else if (option == "fault")
            text = faults();
        else if (option == "fault_entries")
            text = fault_entries();
        else if (option == "options")
            text = kOptions;
        else
            return unknown_option(name);
        std::snprintf(value, size, "%s", text.c_str());
        return static_cast<int>(DIPU_SUCCESS);
    });
}

// An entry as it stands in the table: the fault asked for, else the function.
template <Entry entry, auto function>
struct Watched;
template <Entry entry, class... Arguments, int (*function)(Arguments...)>
struct Watched<entry, function> {
    static int call(Arguments... arguments) {
        if (faults_set())
            if (const int status = injected(entry)) return status;
        return function(arguments...);
    }
};

const char* watched_last_error() { return faults_set() && injected(Entry::last_error) ? nullptr : last_error(); }
void* watched_host_alias(const void* pointer) { return faults_set() && injected(Entry::host_alias) ? nullptr : host_alias(pointer); }
int watched_stream_run(void* stream, const char* name, dipuTask task, void (*destroy)(void*), void* argument) {
    if (faults_set())
        if (const int status = injected(Entry::stream_run)) {
            destroy(argument);  // always called once
            return status;
        }
    return run_on_stream(stream, name, task, destroy, argument);
}

const dipuVendorTable& table() {
    static const dipuVendorTable filled = [] {
        dipuVendorTable t{};  // no communication between chips: those entries stay NULL, and the framework goes through the host
        t.size = sizeof(t);
        t.abi = DIPU_VENDOR_ABI;
        t.name = "host";
        t.description = "simulated chip on the CPU";
        t.last_error = watched_last_error;
        t.host_alias = watched_host_alias;
        t.stream_run = watched_stream_run;
#define WATCHED(entry, function) t.entry = Watched<Entry::entry, function>::call
        WATCHED(features, features);
        WATCHED(device_count, count_devices);
        WATCHED(device_properties, properties);
        WATCHED(device_synchronize, synchronize_device);
        WATCHED(memory_allocate, allocate);
        WATCHED(memory_free, free_memory);
        WATCHED(memory_info, memory_info);
        WATCHED(pinned_allocate, allocate_pinned);
        WATCHED(pinned_free, free_pinned);
        WATCHED(copy, copy);
        WATCHED(fill, fill);
        WATCHED(stream_create, create_stream);
        WATCHED(stream_destroy, destroy_stream);
        WATCHED(stream_synchronize, synchronize_stream);
        WATCHED(stream_query, query_stream);
        WATCHED(stream_wait_event, wait_event);
        WATCHED(event_create, create_event);
        WATCHED(event_destroy, destroy_event);
        WATCHED(event_record, record_event);
        WATCHED(event_synchronize, synchronize_event);
        WATCHED(event_query, query_event);
        WATCHED(event_elapsed, elapsed);
        WATCHED(adopt, adopt);
        WATCHED(release, release);
        WATCHED(set_option, set_option);
        WATCHED(get_option, get_option);
        WATCHED(module_load, load_module);
        WATCHED(module_unload, unload_module);
        WATCHED(module_function, function_of_module);
        WATCHED(kernel_launch, launch_kernel);
        WATCHED(stream_priority_range, priority_range);
        WATCHED(event_create_with_flags, create_event_with_flags);
        WATCHED(alias_device_type, alias_device_type);
#undef WATCHED
        return t;
    }();
    return filled;
}

}  // namespace

bool reordered() { return reordered_on().load(std::memory_order_relaxed); }

}  // namespace dipu_vendor

extern "C" __attribute__((visibility("default"))) const dipuVendorTable* dipuGetVendorTable(void) { return &dipu_vendor::table(); }
