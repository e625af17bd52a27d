// What a profile sees of the device: operators, the work they queue, and how long it took.
//
// A place that queues work says so with one of these objects on its stack. While no profile is on that costs one relaxed load. Work is
// measured by the vendor's events on its stream (an event, the work, an event): queued work gets the device's time, not the host's.
#pragma once
#include <c10/macros/Macros.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "../runtime/vendor.h"

namespace dipu {

DIPU_API extern std::atomic<bool> profiling_on;
inline bool profiling() { return C10_UNLIKELY(profiling_on.load(std::memory_order_relaxed)); }

struct ThreadRecords;

// One entry in the records of a thread, as long as it is open.
struct OpenRecord {
    ThreadRecords* thread = nullptr;
    uint64_t profile;  // a profile may end, and another begin, while the entry is open
    size_t index;
};

// An operator of the device while it runs: row `LaunchKernel_dipu_NAME` of its thread, and `dipu_NAME` on the device over all of its work.
class DIPU_API ProfiledOperator {
   public:
    explicit ProfiledOperator(const std::string& name) {  // of an OpRecord, which lives as long as the process
        if (profiling()) begin(name);
    }
    ~ProfiledOperator() {
        if (C10_UNLIKELY(open_.thread != nullptr)) end();
    }
    ProfiledOperator(const ProfiledOperator&) = delete;
    ProfiledOperator& operator=(const ProfiledOperator&) = delete;

   private:
    void begin(const std::string& name);
    void end();

    OpenRecord open_;
};

enum class DeviceWork : uint8_t {
    Function,  // of DIOPI
    Alias,     // a CPU kernel over aliases of device memory, queued on the stream
    AliasNow,  // the same on the calling thread: the host's clock measures it
    Copy,
};

// Work that is put on the current stream of a device. It counts once `queued` is called; without that nothing was queued.
class DIPU_API ProfiledWork {
   public:
    ProfiledWork(DeviceWork work, const char* name, int device) {
        if (profiling()) begin(work, name, device);
    }
    ~ProfiledWork() {
        if (C10_UNLIKELY(open_.thread != nullptr)) drop();
    }
    ProfiledWork(const ProfiledWork&) = delete;
    ProfiledWork& operator=(const ProfiledWork&) = delete;

    void queued() {
        if (C10_UNLIKELY(open_.thread != nullptr)) end();
    }

   protected:
    ProfiledWork() = default;
    void begin(DeviceWork work, const char* name, int device, size_t bytes = 0);

   private:
    void end();
    void drop();

    OpenRecord open_;
    int device_;
    void *stream_, *start_, *finish_;  // the vendor's; no events for what the host's clock measures
};

// A copy by the vendor's `copy`.
class DIPU_API ProfiledCopy : public ProfiledWork {
   public:
    ProfiledCopy(int device, const void* destination, const void* source, size_t bytes, dipuCopyKind kind) {
        if (profiling()) begin_copy(device, kind == DIPU_HOST_TO_DEVICE ? source : destination, bytes, kind);
    }

   private:
    void begin_copy(int device, const void* host, size_t bytes, dipuCopyKind kind);
};

// Something the host does for the device, such as waiting for it: a row of its thread. The name is a literal.
class DIPU_API ProfiledRuntimeCall {
   public:
    explicit ProfiledRuntimeCall(const char* name) {
        if (profiling()) begin(name);
    }
    ~ProfiledRuntimeCall() {
        if (C10_UNLIKELY(open_.thread != nullptr)) end();
    }
    ProfiledRuntimeCall(const ProfiledRuntimeCall&) = delete;
    ProfiledRuntimeCall& operator=(const ProfiledRuntimeCall&) = delete;

   private:
    void begin(const char* name);
    void end();

    OpenRecord open_;
};

}  // namespace dipu
