// What torch's device guards, streams and events call.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include "../profiler/recorder.h"
#include "allocator.h"
#include "deferred_errors.h"
#include "device.h"

namespace dipu {
namespace {

c10::Stream make_stream(int device, int64_t id) { return c10::Stream(c10::Stream::UNSAFE, dipu_device(device), id); }

// The answer to a query: done, not yet, or an error.
bool is_done(int status, const char* doing) {
    if (status == DIPU_ERROR_NOT_READY) return false;
    check(status, doing);
    return true;
}

// torch does not hand the flag on; it is set around the recording that makes a blocking event.
thread_local bool blocking_events = false;

void* create_event(int device, uint32_t flags) {
    if (blocking_events) flags |= DIPU_EVENT_BLOCKING;
    void* event = nullptr;
    if (vendor()->event_create_with_flags && flags != 0)
        check(vendor()->event_create_with_flags(device, flags, &event), "creating an event");
    else
        check(vendor()->event_create(device, &event), "creating an event");
    return event;
}

struct Guard final : public c10::impl::DeviceGuardImplInterface {
    static constexpr c10::DeviceType static_type = c10::kPrivateUse1;
    Guard() = default;
    explicit Guard(c10::DeviceType type) { TORCH_INTERNAL_ASSERT(type == c10::kPrivateUse1); }

    c10::DeviceType type() const override { return c10::kPrivateUse1; }
    c10::Device exchangeDevice(c10::Device device) const override { return dipu_device(exchange_device(device.index())); }
    c10::Device getDevice() const override { return dipu_device(current_device()); }
    void setDevice(c10::Device device) const override { set_device(device.index()); }
    void uncheckedSetDevice(c10::Device device) const noexcept override {
        if (device.index() >= 0 && device.index() < device_count()) set_device(device.index());
    }
    c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count()); }

#if __has_include(<c10/core/DeviceCapability.h>)
    // Every dtype: what the vendor has no operator for falls back.
    c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
        check_device(index_or_current(device));
        return {};
    }
#endif

    c10::Stream getStream(c10::Device device) const override {
        const int index = index_or_current(device);
        check_device(index);
        return make_stream(index, current_stream(index));
    }
    c10::Stream getDefaultStream(c10::Device device) const override { return make_stream(index_or_current(device), 0); }
    c10::Stream getStreamFromGlobalPool(c10::Device device, bool high) const override { return getNewStream(device, high ? -1 : 0); }
    c10::Stream getNewStream(c10::Device device, int priority = 0) const override {
        const int index = index_or_current(device);
        return make_stream(index, new_stream(index, priority));
    }
    c10::Stream exchangeStream(c10::Stream stream) const override {
        return make_stream(stream.device_index(), exchange_stream(stream.device_index(), stream.id()));
    }
    void* getStreamNativeHandle(const c10::Stream stream) const override { return stream_handle(stream.device_index(), stream.id()); }
    bool queryStream(const c10::Stream& stream) const override {
        return is_done(vendor()->stream_query(stream_handle(stream.device_index(), stream.id())), "asking a stream");
    }
    void synchronizeStream(const c10::Stream& stream) const override { synchronize_stream(stream.device_index(), stream.id()); }
    void synchronizeDevice(const c10::DeviceIndex device) const override { synchronize_device(device); }

    void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag flag) const override {
        if (!*event) *event = create_event(stream.device_index(), flag == c10::EventFlag::PYTORCH_DEFAULT ? DIPU_EVENT_DISABLE_TIMING : 0);
        check(vendor()->event_record(*event, stream_handle(stream.device_index(), stream.id())), "recording an event");
    }
    void block(void* event, const c10::Stream& stream) const override {
        if (event) check(vendor()->stream_wait_event(stream_handle(stream.device_index(), stream.id()), event), "waiting for an event");
    }
    bool queryEvent(void* event) const override { return !event || is_done(vendor()->event_query(event), "asking an event"); }
    void synchronizeEvent(void* event) const override {
        ProfiledRuntimeCall profiled("dipuEventSynchronize");
        if (event) check(vendor()->event_synchronize(event), "waiting for an event");
    }
    void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
        if (event) check_later(vendor()->event_destroy(event), "destroying an event");
    }
    double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
        TORCH_CHECK(start && end, "dipu: both events must be recorded before their distance can be measured");
        double milliseconds = 0;
        check(vendor()->event_elapsed(start, end, &milliseconds), "measuring the distance of two events");
        return milliseconds;
    }
    void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
        record_stream(pointer, stream.device_index(), stream.id());
    }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace

void set_blocking_events(bool blocking) { blocking_events = blocking; }

}  // namespace dipu
