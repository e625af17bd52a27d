#include "sync_debug.h"

#include <c10/util/Exception.h>

namespace dipu {

std::atomic<SyncDebugMode> sync_debug_mode{SyncDebugMode::Off};

// torch turns a warning into Python's at the line that called the operator.
void report_synchronization(const char* what) {
    TORCH_CHECK(sync_debug_mode != SyncDebugMode::Error, "called a synchronizing dipu operation: ", what);
    TORCH_WARN("called a synchronizing dipu operation: ", what);
}

}  // namespace dipu
