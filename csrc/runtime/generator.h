// Random numbers of a device: the CPU's own engine, so that a seed gives the same numbers as on the CPU.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include "device.h"

namespace dipu {

class GeneratorImpl final : public c10::GeneratorImpl {
   public:
    explicit GeneratorImpl(c10::DeviceIndex device, at::Generator engine = at::detail::createCPUGenerator())
        : c10::GeneratorImpl(dipu_device(device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), engine_(std::move(engine)) {}

    // The engine that host kernels draw from.
    const at::Generator& engine() const { return engine_; }

    void set_current_seed(uint64_t seed) override { engine_.set_current_seed(seed); }
    uint64_t current_seed() const override { return engine_.current_seed(); }
    uint64_t seed() override { return engine_.seed(); }
    void set_offset(uint64_t) override { no_offset(); }
    uint64_t get_offset() const override { no_offset(); }
    void set_state(const c10::TensorImpl& state) override { engine_.unsafeGetGeneratorImpl()->set_state(state); }
    c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return engine_.unsafeGetGeneratorImpl()->get_state(); }
    static c10::DeviceType device_type() { return c10::kPrivateUse1; }

   private:
    [[noreturn]] static void no_offset() {
        TORCH_CHECK(false, "dipu: this generator has no offset (its engine is a Mersenne twister); use get_state and set_state");
    }
    GeneratorImpl* clone_impl() const override { return new GeneratorImpl(device().index(), engine_.clone()); }

    at::Generator engine_;
};

DIPU_API const at::Generator& default_generator(int device);
DIPU_API at::Generator make_generator(int device);
// The engine inside a dipu generator.
DIPU_API at::Generator engine_of(const at::Generator& generator);

}  // namespace dipu
