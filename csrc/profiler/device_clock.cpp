#include "device_clock.h"

namespace dipu {

void* EventPool::take(int device) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        auto& events = events_[device];
        if (!events.empty()) {
            void* event = events.back();
            events.pop_back();
            return event;
        }
    }
    void* event = nullptr;
    return vendor()->event_create(device, &event) == DIPU_SUCCESS ? event : nullptr;
}

void EventPool::give(int device, void* event) {
    if (!event) return;
    std::lock_guard<std::mutex> lock(mutex_);
    events_[device].push_back(event);
}

void EventPool::trim() {
    constexpr size_t kKept = 256;
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& events : events_)
        for (; events.size() > kKept; events.pop_back()) vendor()->event_destroy(events.back());
}

bool DeviceClock::start(int device, EventPool& pool) {
    constexpr int kAttempts = 5;
    void *stream = nullptr, *event = nullptr;
    if (vendor()->stream_create(device, 0, &stream) != DIPU_SUCCESS) return false;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
        if (!event) event = pool.take(device);
        if (!event) break;
        const auto before = c10::getApproximateTime();
        if (vendor()->event_record(event, stream) != DIPU_SUCCESS || vendor()->event_synchronize(event) != DIPU_SUCCESS) break;
        const auto after = c10::getApproximateTime();
        if (zero && after - before >= latest - earliest) continue;
        std::swap(zero, event);
        earliest = before;
        latest = after;
    }
    pool.give(device, event);
    vendor()->stream_destroy(stream);
    return zero != nullptr;
}

}  // namespace dipu
