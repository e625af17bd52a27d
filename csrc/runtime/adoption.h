// Host memory that is device memory for a while: results of kernels that ran on an alias.
#pragma once
#include <vector>

#include "allocator.h"

namespace dipu {

// The work that streams have queued by now.
struct QueuedWork {
    std::vector<void*> events;
    std::vector<int> devices;  // where no event could be had: they must be idle before the memory is used again
};
// Never throws; what fails is told later.
QueuedWork queued_work(const std::vector<StreamUse>& uses) noexcept;

// A block of adopted memory is not used by a storage any more.
void free_adopted(Block* block, QueuedWork work);

}  // namespace dipu
