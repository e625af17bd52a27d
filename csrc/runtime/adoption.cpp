#include "adoption.h"

#include <c10/util/Exception.h>

#include <limits>
#include <memory>
#include <utility>

#include "deferred_errors.h"
#include "memory_check.h"
#include "memory_history.h"
#include "memory_pool.h"

namespace dipu {
namespace {

// Host memory that was device memory until all work queued on its stream, and the events of other streams, are over.
struct Leaving {
    c10::DataPtr host;
    QueuedWork work;
    int device;
    bool reached = false;  // by its stream
};

void keep_until_idle(Leaving& leaving, int also) {
    auto& pool = memory_pool(leaving.device);
    leaving.work.devices.push_back(also);
    std::lock_guard<std::mutex> lock(pool.mutex);
    pool.pending.push_back({nullptr, std::move(leaving.host), std::move(leaving.work.events), std::move(leaving.work.devices)});
}

// Called by the vendor, on the stream's own thread or, where it could not queue, on this one.
void end(Leaving& leaving) {
    bool over = leaving.reached && leaving.work.devices.empty();
    for (void* event : leaving.work.events) {
        if (!over) break;
        over = check_later(vendor()->event_synchronize(event), "waiting for an event");
    }
    if (!over) return keep_until_idle(leaving, leaving.device);
    for (void* event : leaving.work.events) check_later(vendor()->event_destroy(event), "destroying an event");
}

using Shared = std::shared_ptr<Leaving>;

int reach(void* argument, char*, size_t) {
    (*static_cast<Shared*>(argument))->reached = true;
    return 0;
}

void destroy(void* argument) {
    std::unique_ptr<Shared> shared(static_cast<Shared*>(argument));
    end(**shared);
    (*shared)->host.clear();
}

// Freed in the stream's order: waiting here could be the stream's own thread waiting for itself.
void free_in_order(c10::DataPtr host, QueuedWork work, int device, int64_t stream) {
    const bool asynchronous = vendor().has_noexcept(DIPU_FEATURE_ASYNCHRONOUS);
    if (!asynchronous && work.events.empty() && work.devices.empty()) return;
    Leaving leaving{std::move(host), std::move(work), device};
    if (!asynchronous) {
        leaving.reached = true;
        return end(leaving);
    }
    if (!vendor()->stream_run) {
        QueuedWork own = queued_work({{device, stream}});
        for (void* event : own.events) leaving.work.events.push_back(event);
        auto& pool = memory_pool(device);
        for (const int other : own.devices) leaving.work.devices.push_back(other);
        std::lock_guard<std::mutex> lock(pool.mutex);
        pool.pending.push_back({nullptr, std::move(leaving.host), std::move(leaving.work.events), std::move(leaving.work.devices)});
        return;
    }
    auto shared = std::make_shared<Leaving>(std::move(leaving));
    const int status = vendor()->stream_run(stream_handle(device, stream), "freeing memory", reach, destroy, new Shared(shared));
    // A vendor that fails must have destroyed the argument; the memory of one that did not must live on all the same.
    if (!check_later(status, "freeing memory in a stream's order") && !shared->reached && shared->host) keep_until_idle(*shared, device);
}

}  // namespace

QueuedWork queued_work(const std::vector<StreamUse>& uses) noexcept {
    QueuedWork work;
    for (const auto& use : uses) {
        void* event = nullptr;
        bool recorded = false;
        try {
            void* stream = stream_handle(use.device, use.stream);
            recorded = check_later(vendor()->event_create(use.device, &event), "creating an event") &&
                       check_later(vendor()->event_record(event, stream), "recording an event");
        } catch (const c10::Error& error) {
            raise_later(error.what_without_backtrace());
        }
        if (recorded) {
            work.events.push_back(event);
            continue;
        }
        if (event) check_later(vendor()->event_destroy(event), "destroying an event");
        work.devices.push_back(use.device);
    }
    return work;
}

void free_adopted(Block* block, QueuedWork work) {
    auto& pool = memory_pool(block->device);
    c10::DataPtr host = std::move(block->adopted);
    block->adopted.clear();  // a DataPtr that was moved from still has its address
    const int device = block->device;
    const int64_t stream = block->stream;
    {
        std::lock_guard<std::mutex> lock(pool.mutex);
        pool.count_use(*block, false);
        pool.count_active(*block, false);
        pool.adopted.erase(block);
        if (check_later(vendor()->release(device, block->pointer, block->size), "releasing adopted memory"))
            pool.count_reserved(block->size, block->small, false);
        else  // it is still the device's
            pool.unreleased.push_back({block->pointer, block->size, block->small, std::exchange(host, c10::DataPtr())});
        if (C10_UNLIKELY(memory_history_on())) {
            record_memory_event(MemoryAction::FreeCompleted, *block, block->requested);
            record_memory_event(MemoryAction::SegmentFree, device, block->pointer, block->size, stream, gathered_for_this_call());
        }
        pool.recycle(block);
    }
    if (host || !work.events.empty() || !work.devices.empty()) free_in_order(std::move(host), std::move(work), device, stream);
}

}  // namespace dipu
