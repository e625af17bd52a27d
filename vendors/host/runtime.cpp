// The vendor table of the simulated chip: devices, memory, streams, events (include/dipu/vendor.h).
#include <dipu/vendor.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "device_memory.h"
#include "kernel.h"
#include "queue.h"

namespace dipu_host {
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

// All streams of a device, for its synchronisation.
struct Streams {
    std::mutex mutex;
    std::set<Stream*> all;
};
Streams& streams() {
    static auto* instance = new Streams;  // never destroyed: worker threads may outlive static destruction
    return *instance;
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

int synchronize_device(int device) {
    return guarded([&] {
        std::set<Stream*> mine;
        {
            std::lock_guard<std::mutex> lock(streams().mutex);
            for (auto* stream : streams().all)
                if (stream->device() == device) mine.insert(stream);
        }
        std::string failure;
        for (auto* stream : mine) {
            try {
                stream->synchronize();
            } catch (const std::exception& error) {
                if (failure.empty()) failure = error.what();
            }
        }
        if (failure.empty()) return DIPU_SUCCESS;
        set_error(failure);
        return DIPU_ERROR;
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

template <class Body>
int on_stream(void* stream, const char* name, Body body) {
    return guarded([&] {
        auto* queue = static_cast<Stream*>(stream);
        if (asynchronous())
            queue->push(name, std::move(body));
        else
            body();
        return DIPU_SUCCESS;
    });
}

int copy(void* stream, void* destination, const void* source, size_t bytes, int) {
    return on_stream(stream, "copy", [=] { std::memmove(untag(destination), untag(source), bytes); });
}

int fill(void* stream, void* pointer, int byte, size_t bytes) {
    return on_stream(stream, "fill", [=] { std::memset(untag(pointer), byte, bytes); });
}

int create_stream(int device, int, void** stream) {
    return guarded([&] {
        auto* created = new Stream(device);
        std::lock_guard<std::mutex> lock(streams().mutex);
        streams().all.insert(created);
        *stream = created;
        return DIPU_SUCCESS;
    });
}

int destroy_stream(void* stream) {
    return guarded([&] {
        auto* old = static_cast<Stream*>(stream);
        {
            std::lock_guard<std::mutex> lock(streams().mutex);
            streams().all.erase(old);
        }
        delete old;
        return DIPU_SUCCESS;
    });
}

int synchronize_stream(void* stream) {
    return guarded([&] {
        static_cast<Stream*>(stream)->synchronize();
        return DIPU_SUCCESS;
    });
}

int query_stream(void* stream) {
    return guarded([&] { return static_cast<Stream*>(stream)->idle() ? DIPU_SUCCESS : DIPU_ERROR_NOT_READY; });
}

using EventPointer = std::shared_ptr<Event>;
EventPointer& as_event(void* event) { return *static_cast<EventPointer*>(event); }

int wait_event(void* stream, void* event) {
    return guarded([&] {
        Event::block(as_event(event), *static_cast<Stream*>(stream));
        return DIPU_SUCCESS;
    });
}

int create_event(int, void** event) {
    return guarded([&] {
        *event = new EventPointer(make_event());
        return DIPU_SUCCESS;
    });
}

int destroy_event(void* event) {
    delete static_cast<EventPointer*>(event);
    return DIPU_SUCCESS;
}

int record_event(void* event, void* stream) {
    return guarded([&] {
        Event::record(as_event(event), *static_cast<Stream*>(stream));
        return DIPU_SUCCESS;
    });
}

int synchronize_event(void* event) {
    return guarded([&] {
        as_event(event)->synchronize();
        return DIPU_SUCCESS;
    });
}

int query_event(void* event) {
    return guarded([&] { return as_event(event)->ready() ? DIPU_SUCCESS : DIPU_ERROR_NOT_READY; });
}

int elapsed(void* start, void* end, double* milliseconds) {
    return guarded([&] {
        *milliseconds = Event::elapsed_ms(*as_event(start), *as_event(end));
        return DIPU_SUCCESS;
    });
}

int run_on_stream(void* stream, const char* name, dipuTask task, void (*destroy)(void*), void* argument) {
    return guarded([&] {
        std::shared_ptr<void> owned(argument, destroy);
        auto body = [task, owned] {
            char error[1024] = "";
            if (task(owned.get(), error, sizeof(error)) != 0) throw std::runtime_error(error);
        };
        if (asynchronous())
            static_cast<Stream*>(stream)->push(name, body);
        else
            body();
        return DIPU_SUCCESS;
    });
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

int unknown_option(const char* name) {
    set_error(std::string("unknown option '") + name + "'; known are numerics, alias, async, delay_us");
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
        else
            return unknown_option(name);
        return static_cast<int>(DIPU_SUCCESS);
    });
}

int get_option(const char* name, char* value, size_t size) {
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
    else
        return unknown_option(name);
    std::snprintf(value, size, "%s", text.c_str());
    return DIPU_SUCCESS;
}

const dipuVendorTable kTable = {
    sizeof(dipuVendorTable), DIPU_VENDOR_ABI, "host", "simulated chip on the CPU", nullptr,
    last_error, features,
    count_devices, properties, synchronize_device,
    allocate, free_memory, memory_info, allocate_pinned, free_pinned, copy, fill,
    create_stream, destroy_stream, synchronize_stream, query_stream, wait_event,
    create_event, destroy_event, record_event, synchronize_event, query_event, elapsed,
    run_on_stream, host_alias, adopt, release, set_option, get_option,
};

}  // namespace

bool reordered() { return reordered_on().load(std::memory_order_relaxed); }

}  // namespace dipu_host

extern "C" __attribute__((visibility("default"))) const dipuVendorTable* dipuGetVendorTable(void) { return &dipu_host::kTable; }
