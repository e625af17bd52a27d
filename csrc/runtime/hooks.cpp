// What torch asks a device type as a whole: availability, generators, pinned memory, resizing.
#include <ATen/Context.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/StorageImpl.h>

#include <vector>

#include "allocator.h"
#include "generator.h"
#include "pinned.h"

namespace dipu {

at::Generator make_generator(int device) {
    check_device(device);
    return at::make_generator<GeneratorImpl>(static_cast<c10::DeviceIndex>(device), vendor().has(DIPU_FEATURE_COUNTER_RANDOM));
}

const at::Generator& default_generator(int device) {
    static const auto* generators = [] {
        auto* made = new std::vector<at::Generator>;
        for (int i = 0; i < device_count(); ++i) {
            made->push_back(make_generator(i));
            made->back().set_current_seed(c10::default_rng_seed_val);
        }
        return made;
    }();
    const int index = device < 0 ? current_device() : device;
    check_device(index);
    return (*generators)[index];
}

namespace {

GeneratorImpl& own(const at::Generator& generator) {
    TORCH_CHECK(generator.device().type() == c10::DeviceType::PrivateUse1, "Expected a 'dipu' device type for generator but found '",
                generator.device().type(), "'");
    return *static_cast<GeneratorImpl*>(generator.unsafeGetGeneratorImpl());
}

}  // namespace

at::Generator engine_of(const at::Generator& generator) {
    std::lock_guard<std::mutex> lock(own(generator).mutex_);
    return own(generator).engine();
}

at::Generator vendor_generator(const at::Generator& generator) { return own(generator).counts() ? generator : engine_of(generator); }

namespace {

struct Hooks final : public at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return device_count() > 0; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return device_count() > 0; }
    void init() const override { check_device(0); }
    c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count()); }
    void setCurrentDevice(c10::DeviceIndex device) const override { set_device(device); }
    c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device()); }
    c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
        return static_cast<c10::DeviceIndex>(exchange_device(device));
    }
    c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
        return static_cast<c10::DeviceIndex>(device < 0 || device >= device_count() ? current_device() : exchange_device(device));
    }
    const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
    at::Generator getNewGenerator(c10::DeviceIndex device) const override {
        return make_generator(device < 0 ? current_device() : device);
    }
    at::Device getDeviceFromPtr(void* pointer) const override { return dipu_device(device_of_pointer(pointer)); }
    bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
    at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
    void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
        resize_storage(storage.unsafeGetStorageImpl(), storage.device().index(), bytes);
    }
};

const bool registered = [] {
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    return true;
}();

}  // namespace
}  // namespace dipu
