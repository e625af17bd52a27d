#include "device.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>

#include "../profiler/recorder.h"
#include "deferred_errors.h"

namespace dipu {
namespace {

constexpr int64_t kStreams = kCommunicationStream + 1;
thread_local int tls_device = 0;
thread_local std::array<int64_t, kMaxDevices> tls_streams{};

int count_or_raise() {
    static const int count = [] {
        int n = 0;
        check(vendor()->device_count(&n), "counting devices");
        return std::min(n, kMaxDevices);
    }();
    return count;
}

using StreamTable = std::array<std::array<std::atomic<void*>, kStreams>, kMaxDevices>;
StreamTable& stream_table() {
    static auto* table = new StreamTable{};
    return *table;
}

// A wait that failed may have ended before the work did, and the caller is about to give up memory that the work uses: it waits once
// more. That wait's status says nothing new.
template <class Wait>
void raise_after(int status, const char* doing, Wait&& wait_again) {
    try {
        check(status, doing);
    } catch (...) {
        wait_again();
        throw;
    }
}

}  // namespace

int device_count() noexcept {
    try {
        return count_or_raise();
    } catch (const c10::Error& error) {
        // Nothing may be raised here. What uses a device raises it; a vendor that failed once may work when asked again.
        static std::atomic<bool> told{false};
        if (vendor_loaded() && !told.exchange(true)) std::fprintf(stderr, "%s\n", error.what_without_backtrace());
        return 0;
    } catch (const std::exception&) {
        return 0;
    }
}

void check_device(int device) {
    const int count = count_or_raise();
    TORCH_CHECK(device >= 0 && device < count, "dipu: device index ", device, " does not exist: this machine has ", count,
                count == 1 ? " device (dipu:0)" : " devices (dipu:0 to dipu:", count == 1 ? "" : std::to_string(count - 1) + ")");
}

int current_device() { return tls_device; }

void set_device(int device) {
    if (device < 0 || device == tls_device) return;
    check_device(device);
    tls_device = device;
}

int exchange_device(int device) {
    const int previous = tls_device;
    set_device(device);
    return previous;
}

dipuDeviceProperties device_properties(int device) {
    check_device(device);
    dipuDeviceProperties properties{};
    check(vendor()->device_properties(device, &properties), "reading device properties");
    return properties;
}

void synchronize_device(int device) {
    check_device(device);
    ProfiledRuntimeCall profiled("dipuDeviceSynchronize");
    const int status = vendor()->device_synchronize(device);
    if (C10_LIKELY(status == DIPU_SUCCESS)) return raise_deferred_errors();
    raise_after(status, "work on the device", [&] { vendor()->device_synchronize(device); });
}

int64_t current_stream(int device) { return tls_streams[device]; }

int64_t exchange_stream(int device, int64_t stream) {
    check_device(device);
    return std::exchange(tls_streams[device], stream);
}

int stream_priority(int64_t stream) {
    if (stream == 0 || stream == kCommunicationStream) return 0;
    return static_cast<int>(-((stream - 1) / kPooledStreams));
}

PriorityRange stream_priority_range(int device) {
    check_device(device);
    int least = 0, greatest = 0;
    if (vendor()->stream_priority_range) check(vendor()->stream_priority_range(device, &least, &greatest), "asking for stream priorities");
    return {0, std::clamp(greatest, 1 - kPriorities, 0)};
}

int64_t new_stream(int device, int priority) {
    check_device(device);
    TORCH_CHECK_VALUE(priority <= 0, "dipu: a stream's priority is 0 or, for more urgent ones, below; got ", priority);
    const int level = priority == 0 ? 0 : -std::max(priority, stream_priority_range(device).greatest);
    static std::array<std::array<std::atomic<int64_t>, kPriorities>, kMaxDevices> next{};
    return 1 + level * kPooledStreams + next[device][level]++ % kPooledStreams;
}

void* stream_handle(int device, int64_t stream) {
    auto& slot = stream_table()[device][stream];
    if (void* handle = slot.load(std::memory_order_acquire)) return handle;
    static std::mutex mutex;
    std::lock_guard<std::mutex> lock(mutex);
    if (!slot) {
        check_device(device);
        void* created = nullptr;
        check(vendor()->stream_create(device, stream_priority(stream), &created), "creating a stream");
        slot = created;
    }
    return slot;
}

bool has_streams(int device) {
    const auto& streams = stream_table()[device];
    return std::any_of(streams.begin(), streams.end(), [](const auto& stream) { return stream.load() != nullptr; });
}

void synchronize_stream(int device, int64_t stream) {
    ProfiledRuntimeCall profiled("dipuStreamSynchronize");
    void* handle = stream_handle(device, stream);
    const int status = vendor()->stream_synchronize(handle);
    if (C10_LIKELY(status == DIPU_SUCCESS)) return raise_deferred_errors();
    raise_after(status, "work on the stream", [&] { vendor()->stream_synchronize(handle); });
}

}  // namespace dipu
