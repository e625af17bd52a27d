// Events to measure with, and the host time at which a device's events are counted from.
#pragma once
#include <c10/util/ApproximateClock.h>

#include <mutex>
#include <vector>

#include "../runtime/device.h"

namespace dipu {

// Events are used again: making one costs more than recording it.
class EventPool {
   public:
    void* take(int device);  // nullptr if the vendor makes no more
    void give(int device, void* event);
    // Keeps some for the next profile.
    void trim();

   private:
    std::mutex mutex_;
    std::vector<void*> events_[kMaxDevices];
};

// An event whose host time is known within [earliest, latest].
struct DeviceClock {
    void* zero = nullptr;
    c10::approx_time_t earliest = 0, latest = 0;

    // Records it on a stream of its own, so that it neither waits for queued work nor takes that work's errors away.
    bool start(int device, EventPool& pool);
};

}  // namespace dipu
