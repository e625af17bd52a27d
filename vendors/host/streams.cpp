// Entries of the vendor table: streams, events, and what runs in a stream's order.
#include <c10/util/Exception.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <set>

#include "chip.h"
#include "entries.h"

namespace dipu_vendor {
namespace {

// Priorities are kept for the program's sake: the threads behind the streams are all equal.
constexpr int kLeastUrgent = 0, kMostUrgent = -2;

using EventPointer = std::shared_ptr<Event>;
EventPointer& as_event(void* event) { return *static_cast<EventPointer*>(event); }

// All streams of a device, for its synchronisation.
struct Streams {
    std::mutex mutex;
    std::set<Stream*> all;
};
Streams& streams() {
    static auto* instance = new Streams;  // never destroyed: worker threads may outlive static destruction
    return *instance;
}

template <class Body>
int on_stream(void* stream, const char* name, Body body) {
    return guarded([&] {
        run_in_order(static_cast<Stream*>(stream), name, std::move(body));
        return DIPU_SUCCESS;
    });
}

}  // namespace

Stream* stream_of(diopiContextHandle_t ctx) {
    diopiStreamHandle_t stream = nullptr;
    TORCH_CHECK(ctx && diopiGetStream(ctx, &stream) == diopiSuccess && stream, "the context has no stream");
    return static_cast<Stream*>(stream);
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

int copy(void* stream, void* destination, const void* source, size_t bytes, int) {
    return on_stream(stream, "copy", [=] { std::memmove(untag(destination), untag(source), bytes); });
}

int fill(void* stream, void* pointer, int byte, size_t bytes) {
    return on_stream(stream, "fill", [=] { std::memset(untag(pointer), byte, bytes); });
}

int create_stream(int device, int priority, void** stream) {
    return guarded([&] {
        if (priority > kLeastUrgent || priority < kMostUrgent) {
            set_error("there is no stream priority " + std::to_string(priority));
            return DIPU_ERROR_VALUE;
        }
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

int priority_range(int, int* least, int* greatest) {
    *least = kLeastUrgent;
    *greatest = kMostUrgent;
    return DIPU_SUCCESS;
}

int wait_event(void* stream, void* event) {
    return guarded([&] {
        Event::block(as_event(event), *static_cast<Stream*>(stream));
        return DIPU_SUCCESS;
    });
}

int create_event(int device, void** event) { return create_event_with_flags(device, 0, event); }

// Waiting gives the core away with or without DIPU_EVENT_BLOCKING.
int create_event_with_flags(int, uint32_t flags, void** event) {
    return guarded([&] {
        if (flags & DIPU_EVENT_INTERPROCESS) {
            set_error("events of the simulated chip cannot be shared between processes");
            return DIPU_ERROR_VALUE;
        }
        *event = new EventPointer(make_event((flags & DIPU_EVENT_DISABLE_TIMING) == 0));
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
        if (!as_event(start)->timed() || !as_event(end)->timed()) {
            set_error("an event was made without timing");
            return DIPU_ERROR_VALUE;
        }
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
        run_in_order(static_cast<Stream*>(stream), name, std::move(body));
        return DIPU_SUCCESS;
    });
}

}  // namespace dipu_vendor
