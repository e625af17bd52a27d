// The other way of torch's profiler, without Kineto (`torch.autograd.profiler.profile(use_device="dipu")`): it marks the begin and the end
// of every operator with an event on the current stream, and asks for the distance.
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include "../runtime/device.h"

namespace dipu {
namespace {

using Event = torch::profiler::impl::ProfilerVoidEventStub;

struct ProfilerMarks final : public torch::profiler::impl::ProfilerStubs {
    void record(c10::DeviceIndex* device, Event* event, int64_t* cpu_ns) const override {
        const int here = current_device();
        if (device) *device = static_cast<c10::DeviceIndex>(here);
        void* made = nullptr;
        check(vendor()->event_create(here, &made), "creating an event");
        *event = Event(made, [](void* old) { vendor()->event_destroy(old); });
        if (cpu_ns) *cpu_ns = c10::getTime();
        check(vendor()->event_record(made, current_stream_handle(here)), "recording an event");
    }
    float elapsed(const Event* start, const Event* end) const override {
        double milliseconds = 0;
        check(vendor()->event_elapsed(start->get(), end->get(), &milliseconds), "measuring the distance of two events");
        return static_cast<float>(milliseconds * 1000);
    }
    void onEachDevice(std::function<void(int)> action) const override {
        for (int device = 0; device < device_count(); ++device) {
            OnDevice here(device);
            action(device);
        }
    }
    void synchronize() const override {
        for (int device = 0; device < device_count(); ++device)
            if (has_streams(device)) synchronize_device(device);
    }
    bool enabled() const override { return device_count() > 0; }
    // For tools of a vendor's own that collect ranges, as nvtx does; no vendor has one.
    void mark(const char*) const override {}
    void rangePush(const char*) const override {}
    void rangePop() const override {}
};

const bool registered = [] {
    torch::profiler::impl::registerPrivateUse1Methods(new ProfilerMarks);
    return true;
}();

}  // namespace
}  // namespace dipu
