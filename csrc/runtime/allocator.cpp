#include "allocator.h"

#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include <limits>
#include <mutex>
#include <utility>

#include "../profiler/recorder.h"
#include "adoption.h"
#include "deferred_errors.h"
#include "memory_check.h"
#include "memory_history.h"
#include "memory_pool.h"

namespace dipu {
namespace {

void free_block(void* context);

class DeviceAllocator final : public c10::DeviceAllocator {
   public:
    c10::DataPtr allocate(size_t bytes) override { return allocate_on(current_device(), bytes); }
    c10::DeleterFnPtr raw_deleter() const override { return nullptr; }  // a block is not its pointer
    void copy_data(void* destination, const void* source, size_t bytes) const override {
        const int device = current_device();
        check(vendor()->copy(current_stream_handle(device), destination, source, bytes, DIPU_DEVICE_TO_DEVICE), "copying device memory");
    }
    bool initialized() override { return vendor_loaded(); }
    void emptyCache(c10::MempoolId_t = {0, 0}) override {
        std::string failure;
        for (int device = 0; device < device_count(); ++device) {
            auto& pool = memory_pool(device);
            std::unique_lock<std::mutex> lock(pool.mutex);
            const std::string found = pool.release(std::numeric_limits<size_t>::max(), lock);
            if (failure.empty()) failure = found;
            pool.forget_peak();
        }
        TORCH_CHECK(failure.empty(), "dipu: work on the device failed: ", failure);
        raise_deferred_errors();
    }
    void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
        record_stream(pointer, stream.device_index(), stream.id());
    }
    DeviceStats getDeviceStats(c10::DeviceIndex device) override {
        check_device(device);
        auto& pool = memory_pool(device);
        std::lock_guard<std::mutex> lock(pool.mutex);
        pool.collect_if_any();
        pool.merge_recent();
        return pool.stats;
    }
    void resetAccumulatedStats(c10::DeviceIndex device) override {
        each_stat(device, [](auto& stat) { stat.reset_accumulated(); });
        auto& stats = memory_pool(device).stats;
        std::lock_guard<std::mutex> lock(memory_pool(device).mutex);
        stats.num_alloc_retries = stats.num_ooms = stats.num_sync_all_streams = stats.num_device_alloc = stats.num_device_free = 0;
    }
    void resetPeakStats(c10::DeviceIndex device) override {
        each_stat(device, [](auto& stat) { stat.reset_peak(); });
        std::lock_guard<std::mutex> lock(memory_pool(device).mutex);
        memory_pool(device).forget_peak();
    }
    std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
        check_device(device);
        size_t free_bytes = 0, total = 0;
        check(vendor()->memory_info(device, &free_bytes, &total), "reading the device's memory");
        return {free_bytes, total};
    }

   private:
    template <class Action>
    void each_stat(int device, Action action) {
        check_device(device);
        std::lock_guard<std::mutex> lock(memory_pool(device).mutex);
        auto& stats = memory_pool(device).stats;
        for (auto* stat : {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
                           &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes})
            for (auto& one : *stat) action(one);
        action(stats.oversize_allocations);
        action(stats.oversize_segments);
    }
};

DeviceAllocator& instance() {
    static auto* allocator = new DeviceAllocator;
    return *allocator;
}

c10::Allocator* const registered = [] {
    c10::SetAllocator(c10::kPrivateUse1, &instance());
    return &instance();
}();

// torch's profiler shows memory by operator; it listens on the threads that run some.
void tell_profiler(void* pointer, int64_t bytes, MemoryPool& pool) {
    if (C10_LIKELY(!c10::memoryProfilingEnabled())) return;
    size_t allocated = 0, reserved = 0;
    {
        std::lock_guard<std::mutex> lock(pool.mutex);
        allocated = pool.allocated(), reserved = pool.reserved();
    }
    c10::reportMemoryUsageToProfiler(pointer, bytes, allocated, reserved, dipu_device(pool.device()));
}

// A block goes to a storage. The pool is locked.
void hand_out(MemoryPool& pool, Block* block, size_t bytes) {
    block->requested = bytes;
    block->state = BlockState::InUse;
    pool.count_use(*block, true);
    if (C10_UNLIKELY(memory_history_on())) {
        block->context = gathered_for_this_call();
        record_memory_event(MemoryAction::Alloc, *block, bytes);
    }
}

// The watchers of memory, in front of the pool's lock and behind it.
struct Watched {
    explicit Watched(TracebackFor purpose) : history(memory_history_on()) {
        if (C10_UNLIKELY(history)) gather_traceback(purpose);
    }
    ~Watched() {
        if (C10_UNLIKELY(history)) forget_gathered();
    }
    bool history;
};

void release_block(Block* block) {
    // The alias stays with a cached block unless somebody still holds it.
    auto* alias = block->cpu_alias.load(std::memory_order_acquire);
    if (alias && (block->adopted || c10::raw::intrusive_ptr::use_count(alias) != 1)) drop_alias(block);
    Watched watched(TracebackFor::Frees);
    if (C10_UNLIKELY(memory_check_on.load(std::memory_order_relaxed))) check_free(*block);
    auto& pool = memory_pool(block->device);
    const int device = block->device;
    void* pointer = block->pointer;
    const auto bytes = static_cast<int64_t>(block->size);
    if (C10_UNLIKELY(watched.history)) record_memory_event(MemoryAction::FreeRequested, *block, block->requested);
    if (C10_UNLIKELY(memory_algorithm() == MemoryAlgorithm::Raw && !block->adopted && vendor().has(DIPU_FEATURE_ASYNCHRONOUS)))
        block->used_by.push_back({device, block->stream});  // the vendor gets it back: its own stream must be done with it, too
    QueuedWork work;
    if (C10_UNLIKELY(!block->used_by.empty())) {
        work = queued_work(block->used_by);
        block->used_by.clear();
    }
    if (block->adopted) {
        free_adopted(block, std::move(work));
    } else {
        std::lock_guard<std::mutex> lock(pool.mutex);
        pool.count_use(*block, false);
        if (C10_UNLIKELY(!work.events.empty() || !work.devices.empty())) {
            block->state = BlockState::Awaiting;
            pool.pending.push_back({block, {}, std::move(work.events), std::move(work.devices)});
        } else {
            pool.give_back(block);
        }
    }
    tell_profiler(pointer, -bytes, pool);
}

// A deleter: nothing may leave it.
void free_block(void* context) {
    if (!context) return;
    try {
        release_block(static_cast<Block*>(context));
    } catch (const c10::Error& error) {
        raise_later(error.what_without_backtrace());
    } catch (const std::exception& error) {
        raise_later(error.what());
    }
}

}  // namespace

c10::Allocator* device_allocator() { return registered; }

c10::DataPtr allocate_on(int device, size_t bytes) {
    const c10::Device where = dipu_device(device);
    if (bytes == 0) return {nullptr, nullptr, &free_block, where};
    raise_deferred_errors();
    Watched watched(TracebackFor::HeldMemory);
    const size_t rounded = MemoryPool::rounded(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, rounded >= bytes, "dipu out of memory. Tried to allocate ", bytes, " bytes: no device has that many");
    const int64_t stream = current_stream(device);
    auto& pool = memory_pool(device);
    Block* block = nullptr;
    {
        std::unique_lock<std::mutex> lock(pool.mutex);
        pool.collect_if_any();
        block = pool.take(rounded, stream, lock);
        hand_out(pool, block, bytes);
    }
    if (C10_UNLIKELY(memory_check_on.load(std::memory_order_relaxed))) check_allocation(*block);
    tell_profiler(block->pointer, static_cast<int64_t>(block->size), pool);
    return {block->pointer, block, &free_block, where};
}

void free_device_memory(void* context) noexcept { free_block(context); }

Block* block_of(const c10::StorageImpl* storage) {
    auto& pointer = const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
    return pointer.get_deleter() == &free_block ? static_cast<Block*>(pointer.get_context()) : nullptr;
}

c10::DataPtr adopt(c10::DataPtr host, size_t bytes, int device) {
    const c10::Device where = dipu_device(device);
    if (!host.get()) return {nullptr, nullptr, &free_block, where};
    raise_deferred_errors();
    Watched watched(TracebackFor::HeldMemory);
    auto& pool = memory_pool(device);
    Block* block = nullptr;
    {
        std::unique_lock<std::mutex> lock(pool.mutex);
        void* pointer = nullptr;
        for (bool retry : {false, true}) {
            const int status = pool.within_fraction(bytes) ? vendor()->adopt(device, host.get(), bytes, &pointer) : DIPU_ERROR_MEMORY;
            if (status == DIPU_SUCCESS) break;
            if (status != DIPU_ERROR_MEMORY) check(status, "adopting host memory");
            if (retry) pool.out_of_memory(bytes, lock);
            const std::string failure = pool.release(std::numeric_limits<size_t>::max(), lock);
            TORCH_CHECK(failure.empty(), "dipu: work on the device failed: ", failure);
        }
        block = pool.new_block();
        block->pointer = pointer;
        block->size = bytes;
        block->device = device;
        block->stream = current_stream(device);
        block->small = bytes <= kSmallLimit;
        block->adopted = std::move(host);
        pool.adopted.insert(block);
        pool.count_reserved(bytes, block->small, true);
        if (C10_UNLIKELY(memory_history_on()))
            record_memory_event(MemoryAction::SegmentAlloc, device, pointer, bytes, block->stream, gathered_for_this_call());
        hand_out(pool, block, bytes);
    }
    if (C10_UNLIKELY(memory_check_on.load(std::memory_order_relaxed))) check_allocation(*block);
    tell_profiler(block->pointer, static_cast<int64_t>(bytes), pool);
    return {block->pointer, block, &free_block, where};
}

void resize_storage(c10::StorageImpl* storage, int device, size_t bytes) {
    TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
    c10::DataPtr fresh = allocate_on(device, bytes);
    if (const size_t kept = std::min(bytes, storage->nbytes())) {
        ProfiledCopy profiled(device, fresh.get(), storage->data(), kept, DIPU_DEVICE_TO_DEVICE);
        check(vendor()->copy(current_stream_handle(device), fresh.get(), storage->data(), kept, DIPU_DEVICE_TO_DEVICE), "resizing a storage");
        profiled.queued();
    }
    storage->set_data_ptr_noswap(std::move(fresh));
    storage->set_nbytes(bytes);
}

int device_of_pointer(const void* pointer) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    for (int device = 0; device < device_count(); ++device) {
        auto& pool = memory_pool(device);
        std::lock_guard<std::mutex> lock(pool.mutex);
        const auto after = pool.segments.upper_bound(address);
        if (after != pool.segments.begin() && address < std::prev(after)->first + std::prev(after)->second->size) return device;
        for (const Block* block : pool.adopted) {
            const auto start = reinterpret_cast<uintptr_t>(block->pointer);
            if (address >= start && address < start + block->size) return device;
        }
    }
    TORCH_CHECK(false, "dipu: the address ", pointer, " is not memory of a dipu device");
}

void record_stream(const c10::DataPtr& pointer, int device, int64_t stream) {
    if (pointer.get_deleter() != &free_block || !pointer.get_context()) return;
    auto* block = static_cast<Block*>(pointer.get_context());
    std::lock_guard<std::mutex> lock(memory_pool(block->device).mutex);
    if (block->device == device && block->stream == stream) return;
    for (const auto& use : block->used_by)
        if (use.device == device && use.stream == stream) return;
    block->used_by.push_back({device, stream});
}

void set_memory_fraction(int device, double fraction) {
    check_device(device);
    TORCH_CHECK_VALUE(fraction > 0 && fraction <= 1, "dipu: a memory fraction lies above 0 and up to 1, got ", fraction);
    std::lock_guard<std::mutex> lock(memory_pool(device).mutex);
    memory_pool(device).fraction = fraction;
}

double memory_fraction(int device) {
    check_device(device);
    std::lock_guard<std::mutex> lock(memory_pool(device).mutex);
    return memory_pool(device).fraction;
}

}  // namespace dipu
