// Devices and streams of the calling thread.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "vendor.h"

namespace dipu {

constexpr int kMaxDevices = 64;

// 0 if there is no vendor; never raises.
DIPU_API int device_count() noexcept;
// Raises what is wrong if there is no device at all or not this one.
DIPU_API void check_device(int device);
DIPU_API int current_device();
DIPU_API void set_device(int device);
DIPU_API int exchange_device(int device);
inline int index_or_current(c10::Device device) { return device.has_index() ? device.index() : current_device(); }
inline c10::Device dipu_device(int index) { return c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)); }
DIPU_API dipuDeviceProperties device_properties(int device);
DIPU_API void synchronize_device(int device);

constexpr int64_t kPooledStreams = 32;
constexpr int kPriorities = 4;  // 0 to -3
// Behind those that are handed out to programs: the stream on which communication copies.
constexpr int64_t kCommunicationStream = kPriorities * kPooledStreams + 1;

// Streams are numbered per device: 0 is the default; 32 of each priority are handed out in turn, 1 to 32 of priority 0, 33 to 64 of
// priority -1, and so on. A priority that the vendor does not have becomes the nearest it has; one above 0 is an error.
DIPU_API int64_t current_stream(int device);
DIPU_API int64_t exchange_stream(int device, int64_t stream);
DIPU_API int64_t new_stream(int device, int priority);
DIPU_API int stream_priority(int64_t stream);
struct PriorityRange {
    int least, greatest;
};
DIPU_API PriorityRange stream_priority_range(int device);
DIPU_API void* stream_handle(int device, int64_t stream);
// Whether work was ever queued on the device.
DIPU_API bool has_streams(int device);
inline void* current_stream_handle(int device) { return stream_handle(device, current_stream(device)); }
DIPU_API void synchronize_stream(int device, int64_t stream);

// Events that this thread records for the first time give the core away while they are waited for.
DIPU_API void set_blocking_events(bool blocking);

// The calling thread works on `device` until the end of the scope.
class OnDevice {
   public:
    explicit OnDevice(int device) : previous_(current_device()), changed_(device != previous_) {
        if (changed_) set_device(device);
    }
    ~OnDevice() {
        if (changed_) set_device(previous_);
    }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;

   private:
    int previous_;
    bool changed_;
};

}  // namespace dipu
