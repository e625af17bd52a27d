// Device memory as torch sees it: a c10 allocator, storages, streams that use a block.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <memory>
#include <vector>

#include "device.h"

namespace dipu {

struct Segment;

struct StreamUse {
    int device;
    int64_t stream;
};

enum class BlockState {
    Free,      // in the tree of its pool
    Recent,    // free, not yet merged with its neighbours
    InUse,     // owned by a storage
    Awaiting,  // freed, but other streams may still work on it
};

// One piece of device memory; the context of the DataPtr that owns it.
struct Block {
    void* pointer = nullptr;
    size_t size = 0;
    size_t requested = 0;
    int device = 0;
    int64_t stream = 0;
    BlockState state = BlockState::Free;
    bool small = false;                                 // of the pool of small blocks
    bool checked = false;                               // DIPU_MEM_CHECK knows it
    std::vector<StreamUse> used_by;                     // other streams that still may work on it
    std::atomic<c10::StorageImpl*> cpu_alias{nullptr};  // owned; the CPU's storage over the same bytes, made on demand
    c10::DataPtr adopted;                               // the host memory behind it, if a host kernel made it
    Segment* segment = nullptr;                         // nullptr: adopted
    Block *before = nullptr, *after = nullptr;          // its neighbours in the segment
    Block* next_recent = nullptr;
    std::shared_ptr<c10::GatheredContext> context;      // where it was allocated, if history is recorded

    bool split() const { return before || after; }
};

DIPU_API c10::Allocator* device_allocator();
// Memory on a given device, for the given size; the current stream is the calling thread's.
DIPU_API c10::DataPtr allocate_on(int device, size_t bytes);
// Gives back what `allocate_on` gave, by the context of its DataPtr; never raises.
DIPU_API void free_device_memory(void* context) noexcept;
// The block behind a storage; nullptr if its memory came from elsewhere.
DIPU_API Block* block_of(const c10::StorageImpl* storage);
// Host memory made by a host kernel becomes device memory without a copy.
DIPU_API c10::DataPtr adopt(c10::DataPtr host, size_t bytes, int device);
// The contents are kept as far as they fit.
DIPU_API void resize_storage(c10::StorageImpl* storage, int device, size_t bytes);
// Raises if the address is none of this device type.
DIPU_API int device_of_pointer(const void* pointer);
DIPU_API void record_stream(const c10::DataPtr& pointer, int device, int64_t stream);
DIPU_API void set_memory_fraction(int device, double fraction);
DIPU_API double memory_fraction(int device);

}  // namespace dipu
