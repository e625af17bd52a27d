// What the device holds, for people: segments with their blocks, and the largest holders.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "allocator.h"

namespace dipu {

struct BlockReport {
    uint64_t address;
    size_t size, requested;
    BlockState state;
    std::shared_ptr<c10::GatheredContext> context;
};

struct SegmentReport {
    uint64_t address;
    size_t size;
    int64_t stream;
    bool small, adopted;
    std::vector<BlockReport> blocks;
    std::shared_ptr<c10::GatheredContext> context;
};

DIPU_API std::vector<SegmentReport> memory_segments(int device);

}  // namespace dipu
