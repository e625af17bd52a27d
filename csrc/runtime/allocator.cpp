#include "allocator.h"

#include "../profiler/recorder.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>

namespace dipu {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;

void free_block(void* context);

// Eight size classes for each power of two: at most an eighth is wasted, and a class is an exact-fit list.
constexpr size_t kSmallest = 512;
constexpr size_t kClasses = 8 * 48;

struct SizeClass {
    size_t index, bytes;
};

SizeClass size_class(size_t bytes) {
    if (bytes <= kSmallest) return {0, kSmallest};
    const int log = 63 - __builtin_clzll(bytes - 1);  // 2^log < bytes <= 2^(log+1)
    const size_t step = size_t(1) << (log - 3);
    const size_t rounded = (bytes + step - 1) & ~(step - 1);
    const size_t eighth = (rounded - (size_t(1) << log)) / step;  // 1..8
    return {static_cast<size_t>(log - 9) * 8 + eighth, rounded};
}

std::string readable(size_t bytes) {
    constexpr std::array<const char*, 4> units{"bytes", "KiB", "MiB", "GiB"};
    double value = static_cast<double>(bytes);
    size_t unit = 0;
    for (; value >= 1024 && unit + 1 < units.size(); ++unit) value /= 1024;
    char text[64];
    std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return text;
}

struct Pending {
    Block* block;
    std::vector<void*> events;
};

struct Pool {
    std::mutex mutex;
    std::array<std::vector<Block*>, kClasses> free;
    std::vector<Pending> pending;   // freed, but other streams may still use them
    std::vector<Block*> shells;     // blocks without memory, for the next adoption
    std::unordered_set<Block*> all;
    DeviceStats stats;
    size_t reserved = 0;
    double fraction = 1.0;
};

Pool& pool(int device) {
    static auto* pools = new std::array<Pool, kMaxDevices>;
    return (*pools)[device];
}

void count_use(DeviceStats& stats, size_t bytes, bool more) {
    constexpr size_t aggregate = 0;
    if (more) {
        stats.allocated_bytes[aggregate].increase(bytes);
        stats.active_bytes[aggregate].increase(bytes);
        stats.requested_bytes[aggregate].increase(bytes);
        stats.allocation[aggregate].increase(1);
    } else {
        stats.allocated_bytes[aggregate].decrease(bytes);
        stats.active_bytes[aggregate].decrease(bytes);
        stats.requested_bytes[aggregate].decrease(bytes);
        stats.allocation[aggregate].decrease(1);
    }
}

void count_reserved(Pool& pool, size_t bytes, bool more) {
    if (more) {
        pool.reserved += bytes;
        pool.stats.reserved_bytes[0].increase(bytes);
        pool.stats.segment[0].increase(1);
    } else {
        pool.reserved -= bytes;
        pool.stats.reserved_bytes[0].decrease(bytes);
        pool.stats.segment[0].decrease(1);
    }
}

// What a profile with profile_memory sees: bytes that came or went, and what is held after it. The pool is not locked.
void tell_profiler(void* pointer, int64_t bytes, size_t allocated, size_t reserved, int device) {
    c10::reportMemoryUsageToProfiler(pointer, bytes, allocated, reserved, dipu_device(device));
}

void drop_alias(Block* block) {
    if (auto* alias = block->cpu_alias.exchange(nullptr)) c10::raw::intrusive_ptr::decref(alias);
}

bool finished(void* event) { return vendor()->event_query(event) == DIPU_SUCCESS; }

// Blocks whose foreign streams are done go back to their list. The pool is locked.
void collect(Pool& pool) {
    for (size_t i = 0; i < pool.pending.size();) {
        auto& waiting = pool.pending[i];
        bool done = true;
        for (void* event : waiting.events) done = done && finished(event);
        if (!done) {
            ++i;
            continue;
        }
        for (void* event : waiting.events) vendor()->event_destroy(event);
        pool.free[size_class(waiting.block->size).index].push_back(waiting.block);
        pool.pending[i] = std::move(pool.pending.back());
        pool.pending.pop_back();
    }
}

// Gives the memory that is cached now back to the vendor. The pool is locked, but not while waiting for queued work, whose end may
// free memory too; what is freed meanwhile stays, as work queued after the wait may use it.
void release_cached(Pool& pool, int device, std::unique_lock<std::mutex>& lock) {
    std::vector<Pending> leaving = std::exchange(pool.pending, {});
    for (auto& list : pool.free)
        for (Block* block : std::exchange(list, {})) leaving.push_back({block, {}});
    if (leaving.empty()) return;
    lock.unlock();
    const int status = vendor()->device_synchronize(device);
    for (auto& [block, events] : leaving) {
        for (void* event : events) {  // of other devices' streams
            vendor()->event_synchronize(event);
            vendor()->event_destroy(event);
        }
        drop_alias(block);
        vendor()->memory_free(device, block->pointer);
    }
    lock.lock();
    for (auto& [block, events] : leaving) {
        count_reserved(pool, block->size, false);
        pool.all.erase(block);
        delete block;
    }
    check(status, "work on the device");
}

bool within_fraction(const Pool& pool, int device, size_t bytes) {
    if (pool.fraction >= 1.0) return true;
    size_t free_bytes = 0, total = 0;
    check(vendor()->memory_info(device, &free_bytes, &total), "reading the device's memory");
    return static_cast<double>(pool.reserved + bytes) <= static_cast<double>(total) * pool.fraction;
}

[[noreturn]] void out_of_memory(Pool& pool, int device, size_t bytes) {
    size_t free_bytes = 0, total = 0;
    vendor()->memory_info(device, &free_bytes, &total);
    pool.stats.num_ooms++;
    const auto held = static_cast<size_t>(pool.stats.allocated_bytes[0].current);
    c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), held, pool.reserved, dipu_device(device));
    std::string fraction = pool.fraction < 1.0 ? " A memory fraction of " + std::to_string(pool.fraction) + " is set." : "";
    TORCH_CHECK_WITH(OutOfMemoryError, false, "dipu out of memory. Tried to allocate ", readable(bytes), " on dipu:", device, ", which has ",
                     readable(total), " in all, ", readable(free_bytes), " free; ", readable(held), " are held by tensors and ",
                     readable(pool.reserved - std::min(pool.reserved, held)),
                     " by the cache (already given back for this attempt).", fraction,
                     " Free tensors, use a smaller batch, or raise the device's memory.");
}

Block* take_cached(Pool& pool, size_t index, int64_t stream) {
    auto& list = pool.free[index];
    for (size_t i = list.size(); i-- > 0;) {
        if (list[i]->stream != stream) continue;
        Block* block = list[i];
        list[i] = list.back();
        list.pop_back();
        return block;
    }
    return nullptr;
}

Block* create(Pool& pool, int device, size_t bytes, std::unique_lock<std::mutex>& lock) {
    void* pointer = nullptr;
    for (bool retry : {false, true}) {
        const int status = within_fraction(pool, device, bytes) ? vendor()->memory_allocate(device, bytes, &pointer) : DIPU_ERROR_MEMORY;
        if (status == DIPU_SUCCESS) break;
        if (status != DIPU_ERROR_MEMORY) check(status, "allocating device memory");
        if (retry) out_of_memory(pool, device, bytes);
        pool.stats.num_alloc_retries++;
        release_cached(pool, device, lock);
    }
    auto* block = new Block;
    block->pointer = pointer;
    block->size = bytes;
    block->device = device;
    pool.all.insert(block);
    count_reserved(pool, bytes, true);
    return block;
}

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
        for (int device = 0; device < device_count(); ++device) {
            auto& mine = pool(device);
            std::unique_lock<std::mutex> lock(mine.mutex);
            release_cached(mine, device, lock);
        }
    }
    void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
        record_stream(pointer, stream.device_index(), stream.id());
    }
    DeviceStats getDeviceStats(c10::DeviceIndex device) override {
        check_device(device);
        std::lock_guard<std::mutex> lock(pool(device).mutex);
        return pool(device).stats;
    }
    void resetAccumulatedStats(c10::DeviceIndex device) override {
        each_stat(device, [](auto& stat) { stat.reset_accumulated(); });
    }
    void resetPeakStats(c10::DeviceIndex device) override {
        each_stat(device, [](auto& stat) { stat.reset_peak(); });
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
        std::lock_guard<std::mutex> lock(pool(device).mutex);
        auto& stats = pool(device).stats;
        for (auto* stat : {&stats.allocated_bytes, &stats.active_bytes, &stats.requested_bytes, &stats.reserved_bytes, &stats.allocation,
                           &stats.segment})
            action((*stat)[0]);
    }
};

DeviceAllocator& instance() {
    static auto* allocator = new DeviceAllocator;
    return *allocator;
}

// Host memory that was device memory until all work queued on its stream, and the events of other streams, are over.
struct Adopted {
    c10::DataPtr host;
    std::vector<void*> events;

    ~Adopted() {
        for (void* event : events) {
            vendor()->event_synchronize(event);
            vendor()->event_destroy(event);
        }
    }
};

// Freed in the stream's order: waiting here could be the stream's own thread waiting for itself.
void free_in_order(std::unique_ptr<Adopted> memory, int device, int64_t stream) {
    if (!vendor().has(DIPU_FEATURE_ASYNCHRONOUS)) return;
    if (!vendor()->stream_run) {
        vendor()->stream_synchronize(stream_handle(device, stream));
        return;
    }
    vendor()->stream_run(stream_handle(device, stream), "freeing memory", [](void*, char*, size_t) { return 0; },
                         [](void* argument) { delete static_cast<Adopted*>(argument); }, memory.release());
}

void free_adopted(Pool& pool, Block* block, std::vector<void*> events) {
    std::unique_ptr<Adopted> memory(new Adopted{std::move(block->adopted), std::move(events)});
    void* const pointer = block->pointer;
    size_t allocated = 0, reserved = 0;
    {
        std::lock_guard<std::mutex> lock(pool.mutex);
        count_use(pool.stats, block->size, false);
        count_reserved(pool, block->size, false);
        vendor()->release(block->device, block->pointer, block->size);
        block->pointer = nullptr;
        block->in_use = false;
        pool.all.erase(block);
        allocated = static_cast<size_t>(pool.stats.allocated_bytes[0].current);
        reserved = pool.reserved;
    }
    tell_profiler(pointer, -static_cast<int64_t>(block->size), allocated, reserved, block->device);
    free_in_order(std::move(memory), block->device, block->stream);
    std::lock_guard<std::mutex> lock(pool.mutex);
    pool.shells.push_back(block);
}

void free_block(void* context) {
    if (!context) return;
    auto* block = static_cast<Block*>(context);
    // The alias stays with a cached block unless somebody still holds it.
    auto* alias = block->cpu_alias.load(std::memory_order_acquire);
    if (alias && (block->adopted || c10::raw::intrusive_ptr::use_count(alias) != 1)) drop_alias(block);
    auto& mine = pool(block->device);
    std::vector<void*> events;
    for (const auto& use : block->used_by) {
        void* event = nullptr;
        vendor()->event_create(use.device, &event);
        vendor()->event_record(event, stream_handle(use.device, use.stream));
        events.push_back(event);
    }
    block->used_by.clear();
    if (block->adopted) return free_adopted(mine, block, std::move(events));
    std::unique_lock<std::mutex> lock(mine.mutex);
    count_use(mine.stats, block->size, false);
    const auto allocated = static_cast<size_t>(mine.stats.allocated_bytes[0].current);
    const size_t reserved = mine.reserved, size = block->size;
    void* const pointer = block->pointer;
    const int device = block->device;
    block->in_use = false;
    if (!events.empty())
        mine.pending.push_back({block, std::move(events)});
    else
        mine.free[size_class(block->size).index].push_back(block);
    lock.unlock();
    tell_profiler(pointer, -static_cast<int64_t>(size), allocated, reserved, device);
}

c10::Allocator* const registered = [] {
    c10::SetAllocator(c10::kPrivateUse1, &instance());
    return &instance();
}();

}  // namespace

c10::Allocator* device_allocator() { return registered; }

c10::DataPtr allocate_on(int device, size_t bytes) {
    const c10::Device where = dipu_device(device);
    if (bytes == 0) return {nullptr, nullptr, &free_block, where};
    const auto wanted = size_class(bytes);
    const int64_t stream = current_stream(device);
    auto& mine = pool(device);
    std::unique_lock<std::mutex> lock(mine.mutex);
    if (C10_UNLIKELY(!mine.pending.empty())) collect(mine);
    Block* block = take_cached(mine, wanted.index, stream);
    if (!block) {
        check_device(device);
        block = create(mine, device, wanted.bytes, lock);
    }
    block->stream = stream;
    block->in_use = true;
    count_use(mine.stats, block->size, true);
    const auto allocated = static_cast<size_t>(mine.stats.allocated_bytes[0].current);
    const size_t reserved = mine.reserved;
    lock.unlock();
    tell_profiler(block->pointer, static_cast<int64_t>(block->size), allocated, reserved, device);
    return {block->pointer, block, &free_block, where};
}

Block* block_of(const c10::StorageImpl* storage) {
    auto& pointer = const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
    return pointer.get_deleter() == &free_block ? static_cast<Block*>(pointer.get_context()) : nullptr;
}

c10::DataPtr adopt(c10::DataPtr host, size_t bytes, int device) {
    const c10::Device where = dipu_device(device);
    if (!host.get()) return {nullptr, nullptr, &free_block, where};
    auto& mine = pool(device);
    std::unique_lock<std::mutex> lock(mine.mutex);
    void* pointer = nullptr;
    for (bool retry : {false, true}) {
        if (within_fraction(mine, device, bytes) && vendor()->adopt(device, host.get(), bytes, &pointer) == DIPU_SUCCESS) break;
        if (retry) out_of_memory(mine, device, bytes);
        release_cached(mine, device, lock);
    }
    Block* block = nullptr;
    if (mine.shells.empty()) {
        block = new Block;
    } else {
        block = mine.shells.back();
        mine.shells.pop_back();
    }
    block->pointer = pointer;
    block->size = bytes;
    block->device = device;
    block->stream = current_stream(device);
    block->in_use = true;
    block->adopted = std::move(host);
    mine.all.insert(block);
    count_reserved(mine, bytes, true);
    count_use(mine.stats, bytes, true);
    const auto allocated = static_cast<size_t>(mine.stats.allocated_bytes[0].current);
    const size_t reserved = mine.reserved;
    lock.unlock();
    tell_profiler(pointer, static_cast<int64_t>(bytes), allocated, reserved, device);
    return {pointer, block, &free_block, where};
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
        std::lock_guard<std::mutex> lock(pool(device).mutex);
        for (const Block* block : pool(device).all) {
            const auto start = reinterpret_cast<uintptr_t>(block->pointer);
            if (address >= start && address < start + block->size) return device;
        }
    }
    TORCH_CHECK(false, "dipu: the address ", pointer, " is not memory of a dipu device");
}

void record_stream(const c10::DataPtr& pointer, int device, int64_t stream) {
    if (pointer.get_deleter() != &free_block || !pointer.get_context()) return;
    auto* block = static_cast<Block*>(pointer.get_context());
    std::lock_guard<std::mutex> lock(pool(block->device).mutex);
    if (block->device == device && block->stream == stream) return;
    for (const auto& use : block->used_by)
        if (use.device == device && use.stream == stream) return;
    block->used_by.push_back({device, stream});
}

std::vector<BlockInfo> memory_snapshot(int device) {
    check_device(device);
    std::lock_guard<std::mutex> lock(pool(device).mutex);
    std::vector<BlockInfo> blocks;
    for (const Block* block : pool(device).all)
        blocks.push_back({reinterpret_cast<uint64_t>(block->pointer), block->size, block->stream, block->in_use, static_cast<bool>(block->adopted)});
    return blocks;
}

void set_memory_fraction(int device, double fraction) {
    check_device(device);
    TORCH_CHECK_VALUE(fraction > 0 && fraction <= 1, "dipu: a memory fraction lies above 0 and up to 1, got ", fraction);
    std::lock_guard<std::mutex> lock(pool(device).mutex);
    pool(device).fraction = fraction;
}

double memory_fraction(int device) {
    check_device(device);
    return pool(device).fraction;
}

}  // namespace dipu
