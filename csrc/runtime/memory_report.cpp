#include "memory_report.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <map>
#include <sstream>

#include "memory_history.h"
#include "memory_pool.h"

namespace dipu {
namespace {

constexpr size_t kHolders = 6;

struct Holder {
    std::string what;
    size_t count = 0, bytes = 0;
};

// Held blocks together by size, or by call site where history is recorded.
std::string largest_holders(const std::vector<std::pair<size_t, std::shared_ptr<c10::GatheredContext>>>& held) {
    std::vector<std::shared_ptr<c10::GatheredContext>> contexts;
    for (const auto& [size, context] : held) contexts.push_back(context);
    std::vector<std::vector<CallFrame>> frames(held.size());
    try {
        frames = frames_of(contexts);
    } catch (const std::exception&) {  // the message must come all the same
    }
    std::map<std::string, Holder> by_name;
    bool sites = false;
    for (size_t i = 0; i < held.size(); ++i) {
        const std::string site = call_site_of(frames[i]);
        sites = sites || !site.empty();
        auto& holder = by_name[readable_size(held[i].first) + (site.empty() ? "" : " from " + site)];
        holder.count++;
        holder.bytes += held[i].first;
    }
    std::vector<std::pair<std::string, Holder>> holders(by_name.begin(), by_name.end());
    std::sort(holders.begin(), holders.end(), [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
    std::ostringstream text;
    text << " Largest holders:";
    for (size_t i = 0; i < std::min(holders.size(), kHolders); ++i)
        text << (i ? ", " : " ") << readable_size(holders[i].second.bytes) << " in " << holders[i].second.count
             << (holders[i].second.count == 1 ? " tensor of " : " tensors of ") << holders[i].first;
    text << (holders.empty() ? " none." : ".");
    if (!sites && !holders.empty()) text << " torch.dipu.memory._record_memory_history() makes this message name their call sites.";
    return text.str();
}

BlockReport report_of(const Block& block) {
    return {reinterpret_cast<uint64_t>(block.pointer), block.size, block.requested, block.state, block.context};
}

}  // namespace

void MemoryPool::out_of_memory(size_t bytes, std::unique_lock<std::mutex>& lock) {
    size_t free_bytes = 0, total = 0;
    const bool known = vendor()->memory_info(device_, &free_bytes, &total) == DIPU_SUCCESS;
    stats.num_ooms++;
    const size_t held = allocated(), taken = reserved();
    std::vector<std::pair<size_t, std::shared_ptr<c10::GatheredContext>>> blocks;
    for (const auto& [address, segment] : segments)
        for (const Block* block = segment->first; block; block = block->after)
            if (block->state == BlockState::InUse) blocks.emplace_back(block->size, block->context);
    for (const Block* block : adopted) blocks.emplace_back(block->size, block->context);
    const double share = fraction;
    if (C10_UNLIKELY(memory_history_on()))
        record_memory_event(MemoryAction::OutOfMemory, device_, reinterpret_cast<void*>(free_bytes), bytes, current_stream(device_),
                            gathered_for_this_call());
    lock.unlock();  // names of call sites need the interpreter
    if (c10::memoryProfilingEnabled()) c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), held, taken, dipu_device(device_));
    const std::string device_says = known ? ", which has " + readable_size(total) + " in all, " + readable_size(free_bytes) + " free"
                                          : ", whose memory the vendor cannot tell";
    const std::string limit = share < 1.0 ? " A memory fraction of " + std::to_string(share) + " is set." : "";
    const std::string cut = taken > held + (taken >> 3) ? " Much of the cache lies between tensors that are held: max_split_size_mb in "
                                                          "PYTORCH_ALLOC_CONF keeps large blocks whole."
                                                        : "";
    const std::string holders = largest_holders(blocks);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "dipu out of memory. Tried to allocate ", readable_size(bytes), " on dipu:", device_, device_says,
                     "; ", readable_size(held), " are held by tensors and ", readable_size(taken - std::min(taken, held)),
                     " by the cache (what is idle was given back for this attempt).", limit, holders, cut,
                     " Free tensors, use a smaller batch or checkpointing, or raise the device's memory.");
}

std::vector<SegmentReport> memory_segments(int device) {
    check_device(device);
    auto& pool = memory_pool(device);
    std::lock_guard<std::mutex> lock(pool.mutex);
    pool.collect_if_any();
    pool.merge_recent();
    std::vector<SegmentReport> found;
    for (const auto& [address, segment] : pool.segments) {
        found.push_back({address, segment->size, segment->stream, segment->small, false, {}, segment->context});
        for (const Block* block = segment->first; block; block = block->after) found.back().blocks.push_back(report_of(*block));
    }
    for (const Block* block : pool.adopted)
        found.push_back({reinterpret_cast<uint64_t>(block->pointer), block->size, block->stream, block->small, true, {report_of(*block)}, block->context});
    if (memory_history_on()) record_memory_event(MemoryAction::Snapshot, device, nullptr, 0, 0, nullptr);
    return found;
}

}  // namespace dipu
