// What the allocator did, and where in the program: torch.dipu.memory._record_memory_history.
#pragma once
#include <c10/core/Allocator.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "allocator.h"

namespace dipu {

enum class MemoryAction { Alloc, FreeRequested, FreeCompleted, SegmentAlloc, SegmentFree, Snapshot, OutOfMemory };
DIPU_API const char* name_of(MemoryAction action);

// For what a traceback is gathered; each level includes those before it.
enum class TracebackFor { Nothing, HeldMemory, Allocations, Frees };

struct MemoryEvent {
    MemoryAction action;
    uint64_t address;  // of out of memory: the bytes that the device has free
    size_t size;
    int64_t stream;
    int64_t microseconds;  // since 1970
    std::shared_ptr<c10::GatheredContext> context;
};

struct HistorySettings {
    bool enabled = false;
    bool events = false;  // not only where held memory came from
    TracebackFor tracebacks = TracebackFor::Nothing;
    bool cpp = false;
    size_t most_events = 0;
    std::vector<std::string> skipped;  // names of actions
};

DIPU_API extern std::atomic<int> memory_history_level;  // 0: off, 1: tracebacks of held memory only, 2: events
inline bool memory_history_on() { return memory_history_level.load(std::memory_order_relaxed) != 0; }

DIPU_API void record_memory_history(HistorySettings settings, bool clear);
DIPU_API std::vector<MemoryEvent> memory_events(int device);

// The traceback of this call, if the settings ask for one for this purpose. Takes the interpreter's lock: the caller must hold no pool.
std::shared_ptr<c10::GatheredContext> gather_traceback(TracebackFor purpose);
// The one that was gathered last on this thread, for what the pool does within the call.
std::shared_ptr<c10::GatheredContext> gathered_for_this_call();
void forget_gathered();

void record_memory_event(MemoryAction action, int device, const void* pointer, size_t bytes, int64_t stream,
                         std::shared_ptr<c10::GatheredContext> context);
void record_memory_event(MemoryAction action, const Block& block, size_t bytes);

struct CallFrame {
    std::string file, function;
    int64_t line;
};
// The Python frames of tracebacks, innermost first. Takes the interpreter's lock.
DIPU_API std::vector<std::vector<CallFrame>> frames_of(const std::vector<std::shared_ptr<c10::GatheredContext>>& contexts);
// The frame a user will want to see: the innermost one outside of torch and this package; "" if there is none.
DIPU_API std::string call_site_of(const std::vector<CallFrame>& frames);

}  // namespace dipu
