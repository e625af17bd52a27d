// Device memory, cached by size class and ordered by stream.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <vector>

#include "device.h"

namespace dipu {

struct StreamUse {
    int device;
    int64_t stream;
};

// One piece of device memory; the context of the DataPtr that owns it.
struct Block {
    void* pointer = nullptr;
    size_t size = 0;
    int device = 0;
    int64_t stream = 0;
    bool in_use = false;
    std::vector<StreamUse> used_by;                     // other streams that still may work on it
    std::atomic<c10::StorageImpl*> cpu_alias{nullptr};  // owned; the CPU's storage over the same bytes, made on demand
    c10::DataPtr adopted;                               // the host memory behind it, if a host kernel made it
};

struct BlockInfo {
    uint64_t address;
    size_t size;
    int64_t stream;
    bool in_use, adopted;
};

DIPU_API c10::Allocator* device_allocator();
// Memory on a given device, for the given size; the current stream is the calling thread's.
DIPU_API c10::DataPtr allocate_on(int device, size_t bytes);
// The block behind a storage; nullptr if its memory came from elsewhere.
DIPU_API Block* block_of(const c10::StorageImpl* storage);
// Host memory made by a host kernel becomes device memory without a copy.
DIPU_API c10::DataPtr adopt(c10::DataPtr host, size_t bytes, int device);
// The contents are kept as far as they fit.
DIPU_API void resize_storage(c10::StorageImpl* storage, int device, size_t bytes);
// Looks through all blocks; raises if the address is none of this device type.
DIPU_API int device_of_pointer(const void* pointer);
DIPU_API void record_stream(const c10::DataPtr& pointer, int device, int64_t stream);
DIPU_API std::vector<BlockInfo> memory_snapshot(int device);
DIPU_API void set_memory_fraction(int device, double fraction);
DIPU_API double memory_fraction(int device);

}  // namespace dipu
