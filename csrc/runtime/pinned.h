// Host memory that the chip may copy from and to while the program goes on.
#pragma once
#include <c10/core/Allocator.h>

#include "device.h"

namespace dipu {

DIPU_API c10::Allocator* pinned_allocator();
DIPU_API bool is_pinned(const void* pointer);
// The memory behind `pointer` is in use by the stream until what is queued now is done.
DIPU_API void record_pinned(const void* pointer, int device, int64_t stream);

}  // namespace dipu
