// torch.cuda.set_sync_debug_mode for this device: operators that wait for it are warned of, or refused.
#pragma once
#include <c10/macros/Macros.h>

#include <atomic>

#include "vendor.h"

namespace dipu {

enum class SyncDebugMode : int { Off = 0, Warn = 1, Error = 2 };
DIPU_API extern std::atomic<SyncDebugMode> sync_debug_mode;
DIPU_API void report_synchronization(const char* what);

// Called by operators before they wait; what the program waits for by name (synchronize, events) is not reported.
inline void note_synchronization(const char* what) {
    if (C10_UNLIKELY(sync_debug_mode.load(std::memory_order_relaxed) != SyncDebugMode::Off)) report_synchronization(what);
}

}  // namespace dipu
