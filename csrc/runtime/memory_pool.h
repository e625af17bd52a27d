// One device's memory. Segments come from the vendor; blocks are cut out of them, and merged again when they are free.
//
// Requests up to 1 MiB share segments of 2 MiB; larger ones come from segments of their own size or, once the device is well
// used, of up to 20 MiB. A block belongs to the stream that it was allocated on, as work in one stream's order needs no waiting.
// What was freed last is kept unmerged in a table by size, so that a program that repeats itself pays neither trees nor merging.
#pragma once
#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "allocator.h"

namespace dipu {

using c10::CachingDeviceAllocator::DeviceStats;

// How memory is cached: DIPU_DEVICE_MEMCACHING_ALGORITHM.
enum class MemoryAlgorithm {
    BestFit,      // TORCH, BF: blocks are split and merged
    SizeClasses,  // BS: a segment for each block, kept by its size class
    Raw,          // RAW: nothing is kept
};

constexpr size_t kSmallestBlock = 512;
constexpr size_t kSmallLimit = size_t(1) << 20;
constexpr size_t kSmallSegment = size_t(2) << 20;
constexpr size_t kSegmentStep = size_t(2) << 20;
constexpr size_t kSharedLimit = size_t(10) << 20;  // larger requests get a segment of their own

struct Segment {
    void* pointer = nullptr;
    size_t size = 0;
    int64_t stream = 0;
    bool small = false;
    Block* first = nullptr;
    uint64_t last_used = 0;  // the number of the allocation
    std::shared_ptr<c10::GatheredContext> context;

    bool idle() const { return first->state == BlockState::Free && !first->after; }
};

// Freed memory that work may still use: until the events are over, or, where no event could be had, until the devices are idle.
struct PendingFree {
    Block* block = nullptr;  // nullptr: host memory that was adopted
    c10::DataPtr host;
    std::vector<void*> events;
    std::vector<int> devices;  // to be synchronised; empty if the events say it all
};

// Adopted memory that nobody uses any more, but that the vendor did not release.
struct Unreleased {
    void* pointer;
    size_t size;
    bool small;
    c10::DataPtr host;
};

struct SmallestFirst {
    using is_transparent = void;
    struct Key {
        int64_t stream;
        size_t size;
    };
    bool operator()(const Block* a, const Block* b) const;
    bool operator()(const Block* a, const Key& b) const;
};

class MemoryPool {
   public:
    explicit MemoryPool(int device) : device_(device) {}

    std::mutex mutex;  // held by the caller of everything below, unless said otherwise

    static size_t rounded(size_t bytes);
    // A free block of at least `bytes` (rounded), its state not yet set. `lock` may be given up for a while.
    Block* take(size_t bytes, int64_t stream, std::unique_lock<std::mutex>& lock);
    // The block is nobody's any more.
    void give_back(Block* block);

    // Looks at who waits for events.
    void collect_if_any() {
        if (C10_UNLIKELY(!pending.empty())) collect();
    }
    void collect();
    // Gives idle segments back to the vendor, up to `bytes` of them; the stretch of waiting is without the lock. What could not be
    // done is told later (deferred_errors.h); an error of queued work, which shows in waiting, is returned.
    std::string release(size_t bytes, std::unique_lock<std::mutex>& lock);
    // A new phase of the program: what it needed before is no measure any more.
    void forget_peak();
    // Merges what was freed lately, so that segments show as they are.
    void merge_recent();

    bool within_fraction(size_t bytes) const;
    [[noreturn]] void out_of_memory(size_t bytes, std::unique_lock<std::mutex>& lock);

    void count_use(const Block& block, bool more);
    void count_active(const Block& block, bool more);
    void count_reserved(size_t bytes, bool small, bool more);

    Block* new_block();
    void recycle(Block* block);

    std::map<uintptr_t, Segment*> segments;
    std::unordered_set<Block*> adopted;
    std::vector<PendingFree> pending;
    std::vector<Unreleased> unreleased;
    DeviceStats stats;
    double fraction = 1.0;
    size_t reserved() const { return static_cast<size_t>(stats.reserved_bytes[0].current); }
    size_t allocated() const { return static_cast<size_t>(stats.allocated_bytes[0].current); }
    int device() const { return device_; }

   private:
    using Tree = std::set<Block*, SmallestFirst>;
    Tree& tree(bool small) { return small ? small_ : large_; }

    Block* take_recent(size_t bytes, int64_t stream);
    Block* best_fit(size_t bytes, int64_t stream);
    Block* cut(Block* block, size_t bytes);
    void insert_merged(Block* block);
    void absorb(Block* block, Block* neighbour);
    void count_inactive(const Block& block, bool more);

    Block* grow(size_t bytes, int64_t stream, std::unique_lock<std::mutex>& lock);
    void make_room(size_t bytes, size_t wanted, std::unique_lock<std::mutex>& lock);
    void release_idle(size_t bytes, std::unique_lock<std::mutex>& lock, std::string& failure);
    size_t segment_bytes(size_t bytes) const;
    Block* new_segment(void* pointer, size_t bytes, int64_t stream, bool small);
    std::vector<Segment*> take_idle(size_t bytes);
    void put_back(Segment* segment);
    void release_adopted();
    bool settle_pending(std::unique_lock<std::mutex>& lock, std::string& failure);

    int device_;
    Tree small_, large_;
    std::array<Block*, 1024> recent_{};
    std::array<bool, 1024> listed_{};
    std::vector<uint16_t> recent_slots_;  // those that may hold some
    std::vector<Block*> shells_;          // blocks without memory, for the next ones
    uint64_t allocations_ = 0;
    size_t most_allocated_ = 0, most_when_given_back_ = 0;
    // How far the segments may outgrow the most that was ever allocated before idle ones are given back; grows by regret.
    double slack_ = 1.1;
    std::multiset<size_t> given_back_;  // sizes of segments that made room
};

DIPU_API MemoryPool& memory_pool(int device);
DIPU_API MemoryAlgorithm memory_algorithm();
// "TORCH", "BF", "BS" or "RAW"; before the first allocation. Raises ValueError for another name.
DIPU_API void choose_memory_algorithm(const std::string& name);

void drop_alias(Block* block);
std::string readable_size(size_t bytes);

}  // namespace dipu
