#include "device.h"

#include "../profiler/recorder.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

namespace dipu {
namespace {

constexpr int64_t kPooledStreams = 32;
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

using StreamTable = std::array<std::array<std::atomic<void*>, kPooledStreams + 1>, kMaxDevices>;
StreamTable& stream_table() {
    static auto* table = new StreamTable{};
    return *table;
}

}  // namespace

int device_count() noexcept {
    try {
        return count_or_raise();
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
    check(vendor()->device_synchronize(device), "work on the device");
}

int64_t current_stream(int device) { return tls_streams[device]; }

int64_t exchange_stream(int device, int64_t stream) {
    check_device(device);
    return std::exchange(tls_streams[device], stream);
}

int64_t new_stream(int device, int) {
    check_device(device);
    static std::array<std::atomic<int64_t>, kMaxDevices> next{};
    return 1 + next[device]++ % kPooledStreams;
}

void* stream_handle(int device, int64_t stream) {
    auto& slot = stream_table()[device][stream];
    if (void* handle = slot.load(std::memory_order_acquire)) return handle;
    static std::mutex mutex;
    std::lock_guard<std::mutex> lock(mutex);
    if (!slot) {
        check_device(device);
        void* created = nullptr;
        check(vendor()->stream_create(device, 0, &created), "creating a stream");
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
    check(vendor()->stream_synchronize(stream_handle(device, stream)), "work on the stream");
}

}  // namespace dipu
