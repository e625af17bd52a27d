#include "memory_pool.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdio>
#include <functional>

#include "deferred_errors.h"
#include "memory_history.h"

namespace dipu {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::CachingAllocator::StatArray;

std::atomic<MemoryAlgorithm> algorithm{MemoryAlgorithm::BestFit};
std::atomic<bool> pools_in_use{false};

// Whether PYTORCH_ALLOC_CONF has roundup_power2_divisions: asked on every allocation, so it is kept.
std::atomic<bool> divides{false};

void read_configuration() {
    bool any = false;
    for (const size_t divisions : AcceleratorAllocatorConfig::roundup_power2_divisions()) any = any || divisions > 0;
    divides.store(any, std::memory_order_relaxed);
}

void add(StatArray& stat, bool small, size_t amount) {
    stat[0].increase(amount);
    stat[small ? 1 : 2].increase(amount);
}

void subtract(StatArray& stat, bool small, size_t amount) {
    stat[0].decrease(amount);
    stat[small ? 1 : 2].decrease(amount);
}

size_t up_to(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

// Eight size classes for each power of two: at most an eighth is wasted.
size_t size_class(size_t bytes) {
    if (bytes <= kSmallestBlock) return kSmallestBlock;
    const int log = 63 - __builtin_clzll(bytes - 1);  // 2^log < bytes <= 2^(log+1)
    return up_to(bytes, size_t(1) << (log - 3));
}

size_t divided(size_t bytes) {
    const size_t divisions = AcceleratorAllocatorConfig::roundup_power2_divisions(bytes);
    if (divisions <= 1 || bytes <= kSmallestBlock * divisions) return up_to(bytes, kSmallestBlock);
    const size_t power = size_t(1) << (63 - __builtin_clzll(bytes));
    return up_to(up_to(bytes, std::max<size_t>(power / divisions, 1)), kSmallestBlock);
}

// Where a size of a stream is looked for among the recently freed.
size_t slot_of(size_t bytes, int64_t stream) { return ((bytes / kSmallestBlock) ^ (bytes >> 19) ^ (static_cast<size_t>(stream) << 5)) & 1023; }

}  // namespace

bool SmallestFirst::operator()(const Block* a, const Block* b) const {
    if (a->stream != b->stream) return a->stream < b->stream;
    if (a->size != b->size) return a->size < b->size;
    return std::less<void*>()(a->pointer, b->pointer);
}

bool SmallestFirst::operator()(const Block* a, const Key& b) const {
    return a->stream != b.stream ? a->stream < b.stream : a->size < b.size;
}

MemoryPool& memory_pool(int device) {
    static auto* pools = [] {
        read_configuration();
        pools_in_use = true;
        auto* made = new std::array<std::unique_ptr<MemoryPool>, kMaxDevices>;
        for (int i = 0; i < kMaxDevices; ++i) (*made)[i] = std::make_unique<MemoryPool>(i);
        return made;
    }();
    return *(*pools)[device];
}

MemoryAlgorithm memory_algorithm() { return algorithm.load(std::memory_order_relaxed); }

void choose_memory_algorithm(const std::string& name) {
    static const std::map<std::string, MemoryAlgorithm> known{{"TORCH", MemoryAlgorithm::BestFit},
                                                              {"BF", MemoryAlgorithm::BestFit},
                                                              {"BS", MemoryAlgorithm::SizeClasses},
                                                              {"RAW", MemoryAlgorithm::Raw}};
    const auto found = known.find(name);
    TORCH_CHECK_VALUE(found != known.end(), "dipu: '", name, "' is no way to cache memory; expected TORCH, BF, BS or RAW");
    TORCH_CHECK(!pools_in_use || algorithm == found->second, "dipu: memory is in use; how it is cached can only be chosen before");
    algorithm = found->second;
}

void drop_alias(Block* block) {
    if (auto* alias = block->cpu_alias.exchange(nullptr)) c10::raw::intrusive_ptr::decref(alias);
}

std::string readable_size(size_t bytes) {
    constexpr std::array<const char*, 4> units{"bytes", "KiB", "MiB", "GiB"};
    double value = static_cast<double>(bytes);
    size_t unit = 0;
    for (; value >= 1024 && unit + 1 < units.size(); ++unit) value /= 1024;
    char text[64];
    std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return text;
}

// ---- figures ----

void MemoryPool::count_active(const Block& block, bool more) {
    const auto change = more ? add : subtract;
    change(stats.active, block.small, 1);
    change(stats.active_bytes, block.small, block.size);
}

void MemoryPool::count_use(const Block& block, bool more) {
    const auto change = more ? add : subtract;
    change(stats.allocation, block.small, 1);
    change(stats.allocated_bytes, block.small, block.size);
    change(stats.requested_bytes, block.small, block.requested);
    if (!more) return;
    count_active(block, true);
    most_allocated_ = std::max(most_allocated_, allocated());
}

void MemoryPool::count_reserved(size_t bytes, bool small, bool more) {
    const auto change = more ? add : subtract;
    change(stats.segment, small, 1);
    change(stats.reserved_bytes, small, bytes);
}

void MemoryPool::count_inactive(const Block& block, bool more) {
    if (!block.split()) return;
    const auto change = more ? add : subtract;
    change(stats.inactive_split, block.small, 1);
    change(stats.inactive_split_bytes, block.small, block.size);
}

// ---- blocks ----

size_t MemoryPool::rounded(size_t bytes) {
    if (C10_UNLIKELY(memory_algorithm() == MemoryAlgorithm::SizeClasses)) return size_class(bytes);
    if (C10_UNLIKELY(divides.load(std::memory_order_relaxed))) return divided(bytes);
    return up_to(bytes, kSmallestBlock);
}

Block* MemoryPool::new_block() {
    if (shells_.empty()) return new Block;
    Block* block = shells_.back();
    shells_.pop_back();
    return block;
}

void MemoryPool::recycle(Block* block) {
    drop_alias(block);
    block->pointer = nullptr;
    block->segment = nullptr;
    block->before = block->after = block->next_recent = nullptr;
    block->context.reset();
    block->used_by.clear();
    block->checked = false;
    shells_.push_back(block);
}

Block* MemoryPool::take_recent(size_t bytes, int64_t stream) {
    Block** link = &recent_[slot_of(bytes, stream)];
    for (; *link; link = &(*link)->next_recent) {
        Block* block = *link;
        if (block->size != bytes || block->stream != stream) continue;
        *link = block->next_recent;
        block->next_recent = nullptr;
        count_inactive(*block, false);
        return block;
    }
    return nullptr;
}

Block* MemoryPool::take(size_t bytes, int64_t stream, std::unique_lock<std::mutex>& lock) {
    ++allocations_;
    if (Block* block = take_recent(bytes, stream)) return block;
    merge_recent();
    read_configuration();
    Block* block = best_fit(bytes, stream);
    if (!block) block = grow(bytes, stream, lock);
    return cut(block, bytes);
}

Block* MemoryPool::best_fit(size_t bytes, int64_t stream) {
    auto& free_blocks = tree(bytes <= kSmallLimit);
    const auto found = free_blocks.lower_bound(SmallestFirst::Key{stream, bytes});
    if (found == free_blocks.end() || (*found)->stream != stream) return nullptr;
    Block* block = *found;
    if (memory_algorithm() != MemoryAlgorithm::BestFit) {
        if (block->size != bytes) return nullptr;
    } else if (const size_t most = AcceleratorAllocatorConfig::max_split_size(); C10_UNLIKELY(most != std::numeric_limits<size_t>::max())) {
        // A block that may not be split serves only what nearly fills it.
        if (bytes < most && block->size >= most) return nullptr;
        if (bytes >= most && block->size >= bytes + AcceleratorAllocatorConfig::max_non_split_rounding_size()) return nullptr;
    }
    free_blocks.erase(found);
    count_inactive(*block, false);
    return block;
}

// The first `bytes` of a free block that is in no tree; the rest goes back.
Block* MemoryPool::cut(Block* block, size_t bytes) {
    block->segment->last_used = allocations_;
    if (block->size - bytes < kSmallestBlock || memory_algorithm() != MemoryAlgorithm::BestFit) return block;
    if (!block->small && bytes >= AcceleratorAllocatorConfig::max_split_size()) return block;
    Block* rest = new_block();
    rest->pointer = static_cast<char*>(block->pointer) + bytes;
    rest->size = block->size - bytes;
    rest->device = device_;
    rest->stream = block->stream;
    rest->small = block->small;
    rest->segment = block->segment;
    rest->state = BlockState::Free;
    rest->before = block;
    rest->after = block->after;
    if (block->after) block->after->before = rest;
    block->after = rest;
    block->size = bytes;
    count_inactive(*rest, true);
    tree(rest->small).insert(rest);
    return block;
}

void MemoryPool::give_back(Block* block) {
    if (C10_UNLIKELY(memory_history_on())) record_memory_event(MemoryAction::FreeCompleted, *block, block->requested);
    count_active(*block, false);
    block->requested = 0;
    block->context.reset();
    if (C10_UNLIKELY(memory_algorithm() == MemoryAlgorithm::Raw)) {
        block->state = BlockState::Free;
        Segment* segment = block->segment;
        return put_back(segment);
    }
    block->state = BlockState::Recent;
    const size_t slot = slot_of(block->size, block->stream);
    if (!listed_[slot]) recent_slots_.push_back(static_cast<uint16_t>(slot));
    listed_[slot] = true;
    block->next_recent = recent_[slot];
    recent_[slot] = block;
    count_inactive(*block, true);
}

void MemoryPool::absorb(Block* block, Block* neighbour) {
    tree(neighbour->small).erase(neighbour);
    count_inactive(*neighbour, false);
    if (neighbour == block->before) {
        block->pointer = neighbour->pointer;
        block->before = neighbour->before;
        if (block->before) block->before->after = block;
        if (block->segment->first == neighbour) block->segment->first = block;
    } else {
        block->after = neighbour->after;
        if (block->after) block->after->before = block;
    }
    block->size += neighbour->size;
    neighbour->before = neighbour->after = nullptr;
    recycle(neighbour);
}

// Into the tree, together with free neighbours.
void MemoryPool::insert_merged(Block* block) {
    count_inactive(*block, false);
    if (block->before && block->before->state == BlockState::Free) absorb(block, block->before);
    if (block->after && block->after->state == BlockState::Free) absorb(block, block->after);
    block->state = BlockState::Free;
    count_inactive(*block, true);
    tree(block->small).insert(block);
}

void MemoryPool::merge_recent() {
    for (const uint16_t slot : recent_slots_) {
        listed_[slot] = false;
        for (Block* block = std::exchange(recent_[slot], nullptr); block;) {
            Block* next = std::exchange(block->next_recent, nullptr);
            insert_merged(block);
            block = next;
        }
    }
    recent_slots_.clear();
}

}  // namespace dipu
