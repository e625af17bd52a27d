// Segments: from the vendor, and back to it.
#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "deferred_errors.h"
#include "memory_history.h"
#include "memory_pool.h"

namespace dipu {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;

// A tenth more than is held at most is what best fit takes of a usual training step.
constexpr double kSlack = 1.1, kSlackGrows = 1.15, kMostSlack = 8;

size_t in_steps(size_t bytes) { return (bytes + kSegmentStep - 1) / kSegmentStep * kSegmentStep; }

// Waits until the device has nothing to do. An error of queued work is told once, by the first wait: a second one that succeeds
// shows that the device is idle all the same. False if the vendor cannot wait; `failure` gets the first message.
bool wait_until_idle(int device, std::string& failure) {
    if (vendor()->device_synchronize(device) == DIPU_SUCCESS) return true;
    const char* message = vendor()->last_error();
    if (failure.empty()) failure = message && *message ? message : "no reason given by the vendor";
    return vendor()->device_synchronize(device) == DIPU_SUCCESS;
}

}  // namespace

// Large requests share segments of what the device held at most, up to 20 MiB: a small program takes little, and a
// large one seldom asks the vendor.
size_t MemoryPool::segment_bytes(size_t bytes) const {
    if (memory_algorithm() != MemoryAlgorithm::BestFit) return bytes;
    if (bytes <= kSmallLimit) return kSmallSegment;
    const size_t own = in_steps(bytes);
    if (bytes >= kSharedLimit) return own;
    return std::max(own, std::min<size_t>(size_t(20) << 20, most_allocated_ / kSegmentStep * kSegmentStep));
}

bool MemoryPool::within_fraction(size_t bytes) const {
    if (fraction >= 1.0) return true;
    size_t free_bytes = 0, total = 0;
    check(vendor()->memory_info(device_, &free_bytes, &total), "reading the device's memory");
    return static_cast<double>(reserved() + bytes) <= static_cast<double>(total) * fraction;
}

Block* MemoryPool::new_segment(void* pointer, size_t bytes, int64_t stream, bool small) {
    auto* segment = new Segment;
    segment->pointer = pointer;
    segment->size = bytes;
    segment->stream = stream;
    segment->small = small;
    Block* block = new_block();
    block->pointer = pointer;
    block->size = bytes;
    block->device = device_;
    block->stream = stream;
    block->small = small;
    block->segment = segment;
    block->state = BlockState::Free;
    segment->first = block;
    segments[reinterpret_cast<uintptr_t>(pointer)] = segment;
    count_reserved(bytes, small, true);
    stats.num_device_alloc++;
    if (C10_UNLIKELY(memory_history_on())) {
        segment->context = gathered_for_this_call();
        record_memory_event(MemoryAction::SegmentAlloc, device_, pointer, bytes, stream, segment->context);
    }
    return block;
}

// Before the segments outgrow what was ever needed by more than the slack, those that are idle are given back: a program whose
// tensors grow leaves segments behind that nothing fits into any more. Where one of that size is wanted again although the program
// needs no more than before, giving it back was a mistake that costs time, and the slack grows.
void MemoryPool::make_room(size_t bytes, size_t wanted, std::unique_lock<std::mutex>& lock) {
    const double allowed = static_cast<double>(std::max(most_allocated_, allocated() + bytes)) * slack_;
    const auto after = static_cast<double>(reserved() + wanted);
    size_t surplus = after > allowed ? static_cast<size_t>(after - allowed) : 0;
    if (const double threshold = AcceleratorAllocatorConfig::garbage_collection_threshold(); C10_UNLIKELY(threshold > 0)) {
        size_t free_bytes = 0, total = 0;
        check(vendor()->memory_info(device_, &free_bytes, &total), "reading the device's memory");
        const double most = static_cast<double>(total) * fraction * threshold;
        if (after > most) surplus = std::max(surplus, static_cast<size_t>(after - most));
    }
    if (surplus == 0) return;
    if (most_allocated_ > most_when_given_back_) {
        given_back_.clear();
        slack_ = kSlack;
    }
    most_when_given_back_ = most_allocated_;
    if (const auto regretted = given_back_.find(wanted); regretted != given_back_.end()) {
        given_back_.erase(regretted);
        slack_ = std::min(slack_ * kSlackGrows, kMostSlack);
        return;
    }
    std::string failure;
    release_idle(surplus, lock, failure);
    if (!failure.empty()) raise_later("work on the device failed: " + failure);
}

void MemoryPool::forget_peak() {
    most_allocated_ = most_when_given_back_ = allocated();
    slack_ = kSlack;
    given_back_.clear();
}

Block* MemoryPool::grow(size_t bytes, int64_t stream, std::unique_lock<std::mutex>& lock) {
    const bool small = bytes <= kSmallLimit;
    size_t wanted = segment_bytes(bytes);
    if (memory_algorithm() == MemoryAlgorithm::BestFit) make_room(bytes, wanted, lock);
    for (bool retry : {false, true}) {
        // Where the device is nearly full, a segment of just this size may still fit.
        for (const size_t size : {wanted, std::min(wanted, in_steps(bytes)), bytes}) {
            void* pointer = nullptr;
            const int status = within_fraction(size) ? vendor()->memory_allocate(device_, size, &pointer) : DIPU_ERROR_MEMORY;
            if (status == DIPU_SUCCESS) {
                TORCH_CHECK(pointer, "dipu: the vendor says that it allocated ", size, " bytes, but gave no address");
                return new_segment(pointer, size, stream, small);
            }
            if (status != DIPU_ERROR_MEMORY) check(status, "allocating device memory");
        }
        if (retry) break;
        stats.num_alloc_retries++;
        const std::string failure = release(std::numeric_limits<size_t>::max(), lock);
        TORCH_CHECK(failure.empty(), "dipu: work on the device failed: ", failure);
        if (Block* block = best_fit(bytes, stream)) return block;  // freed while this one waited
    }
    out_of_memory(bytes, lock);
}

// Out of the tree, least recently used first; nobody takes from them any more.
std::vector<Segment*> MemoryPool::take_idle(size_t bytes) {
    std::vector<Segment*> idle;
    for (const auto& [address, segment] : segments)
        if (segment->idle()) idle.push_back(segment);
    std::sort(idle.begin(), idle.end(), [](const Segment* a, const Segment* b) { return a->last_used < b->last_used; });
    size_t taken = 0, count = 0;
    while (count < idle.size() && taken < bytes) {
        Segment* segment = idle[count++];
        taken = segment->size > std::numeric_limits<size_t>::max() - taken ? bytes : taken + segment->size;
        tree(segment->small).erase(segment->first);
        segments.erase(reinterpret_cast<uintptr_t>(segment->pointer));
    }
    idle.resize(count);
    return idle;
}

// An idle segment that is known to be unused by work goes back to the vendor; into the cache if the vendor does not take it.
void MemoryPool::put_back(Segment* segment) {
    drop_alias(segment->first);
    segments.erase(reinterpret_cast<uintptr_t>(segment->pointer));
    if (!check_later(vendor()->memory_free(device_, segment->pointer), "giving device memory back")) {
        segments[reinterpret_cast<uintptr_t>(segment->pointer)] = segment;
        tree(segment->small).insert(segment->first);
        return;
    }
    if (C10_UNLIKELY(memory_history_on()))
        record_memory_event(MemoryAction::SegmentFree, device_, segment->pointer, segment->size, segment->stream, gathered_for_this_call());
    count_reserved(segment->size, segment->small, false);
    stats.num_device_free++;
    recycle(segment->first);
    delete segment;
}

// What waits for events or for idle devices becomes free, as far as waiting works. False if the device cannot be waited for.
bool MemoryPool::settle_pending(std::unique_lock<std::mutex>& lock, std::string& failure) {
    std::vector<PendingFree> waiting = std::exchange(pending, {});
    if (waiting.empty()) return true;
    lock.unlock();
    std::array<int, kMaxDevices> idle{};  // 0: not asked, 1: yes, -1: cannot be waited for
    const auto wait = [&](int device) {
        if (idle[device] == 0) idle[device] = wait_until_idle(device, failure) ? 1 : -1;
        return idle[device] > 0;
    };
    std::vector<PendingFree> still_used, over;
    const bool mine = wait(device_);
    for (auto& one : waiting) {
        bool done = mine;
        for (void* event : one.events) done = done && check_later(vendor()->event_synchronize(event), "waiting for an event");
        for (const int device : one.devices) done = done && wait(device);
        (done ? over : still_used).push_back(std::move(one));
    }
    for (auto& one : over) {
        for (void* event : one.events) check_later(vendor()->event_destroy(event), "destroying an event");
        one.host.clear();
    }
    lock.lock();
    for (auto& one : over)
        if (one.block) give_back(one.block);
    for (auto& one : still_used) pending.push_back(std::move(one));
    return mine;
}

// Another attempt.
void MemoryPool::release_adopted() {
    if (C10_LIKELY(unreleased.empty())) return;
    std::string failure;
    if (!wait_until_idle(device_, failure)) return;
    for (auto& one : std::exchange(unreleased, {})) {
        if (check_later(vendor()->release(device_, one.pointer, one.size), "releasing adopted memory"))
            count_reserved(one.size, one.small, false);
        else
            unreleased.push_back(std::move(one));
    }
    if (!failure.empty()) raise_later("work on the device failed: " + failure);
}

std::string MemoryPool::release(size_t bytes, std::unique_lock<std::mutex>& lock) {
    std::string failure;
    if (!settle_pending(lock, failure)) return failure;
    release_adopted();
    release_idle(bytes, lock, failure);
    return failure;
}

void MemoryPool::release_idle(size_t bytes, std::unique_lock<std::mutex>& lock, std::string& failure) {
    merge_recent();
    const std::vector<Segment*> leaving = take_idle(bytes);
    if (leaving.empty()) return;
    lock.unlock();  // the end of queued work may free memory, too
    const bool idle = wait_until_idle(device_, failure);
    lock.lock();
    stats.num_sync_all_streams++;
    for (Segment* segment : leaving) {
        if (idle) {
            if (bytes != std::numeric_limits<size_t>::max() && given_back_.size() < 256) given_back_.insert(segment->size);
            put_back(segment);
        } else {
            segments[reinterpret_cast<uintptr_t>(segment->pointer)] = segment;
            tree(segment->small).insert(segment->first);
        }
    }
}

void MemoryPool::collect() {
    for (size_t i = 0; i < pending.size();) {
        auto& one = pending[i];
        bool done = one.devices.empty();
        for (void* event : one.events) {
            if (!done) break;
            const int status = vendor()->event_query(event);
            if (status == DIPU_SUCCESS) continue;
            done = false;
            // The vendor cannot tell: only an idle device will.
            if (status != DIPU_ERROR_NOT_READY && !check_later(status, "asking an event")) one.devices.push_back(device_);
        }
        if (!done) {
            ++i;
            continue;
        }
        for (void* event : one.events) check_later(vendor()->event_destroy(event), "destroying an event");
        PendingFree over = std::move(one);
        pending[i] = std::move(pending.back());
        pending.pop_back();
        if (over.block) give_back(over.block);
    }
}

}  // namespace dipu
