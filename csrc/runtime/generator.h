// A generator of the device. Of a chip that draws by a counter it is a seed and an offset, as torch.cuda's is; else it is a generator of the CPU's
// kind, so that the same seed gives the same numbers as on the CPU.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>

#include <cstring>

#include "device.h"

namespace dipu {

class GeneratorImpl final : public c10::GeneratorImpl {
   public:
    GeneratorImpl(c10::DeviceIndex device, bool counts, at::Generator engine = at::detail::createCPUGenerator())
        : c10::GeneratorImpl(dipu_device(device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
          engine_(std::move(engine)), counts_(counts), counter_{engine_.current_seed(), 0} {}

    bool counts() const { return counts_; }
    // The engine that host kernels draw from. A counter seeds it and moves on, so that the next draw is another one.
    const at::Generator& engine() {
        if (counts_) {
            engine_.set_current_seed(counter_.seed + counter_.offset * 0x9e3779b97f4a7c15ull);
            counter_.offset += kDrawn;
        }
        return engine_;
    }

    void set_current_seed(uint64_t seed) override {
        counter_ = {seed, 0};
        engine_.set_current_seed(seed);
    }
    uint64_t current_seed() const override { return counts_ ? counter_.seed : engine_.current_seed(); }
    uint64_t seed() override {
        counter_ = {engine_.seed(), 0};
        return counter_.seed;
    }
    void set_offset(uint64_t offset) override {
        check_offset();
        TORCH_CHECK_VALUE(offset % kDrawn == 0, "dipu: an offset is a multiple of ", kDrawn, ", not ", offset);
        counter_.offset = offset;
    }
    uint64_t get_offset() const override {
        check_offset();
        return counter_.offset;
    }
    void set_state(const c10::TensorImpl& state) override {
        if (!counts_) return engine_.unsafeGetGeneratorImpl()->set_state(state);
        at::detail::check_rng_state(state);
        TORCH_CHECK(state.numel() == sizeof(Counter), "dipu: a state of this generator has ", sizeof(Counter), " bytes, a seed and an offset; got ",
                    state.numel());
        Counter given{};
        std::memcpy(&given, state.data(), sizeof(given));
        set_current_seed(given.seed);
        set_offset(given.offset);
    }
    c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
        if (!counts_) return engine_.unsafeGetGeneratorImpl()->get_state();
        const auto state = at::detail::empty_cpu({static_cast<int64_t>(sizeof(Counter))}, at::kByte);
        std::memcpy(state.mutable_data_ptr(), &counter_, sizeof(counter_));
        return state.getIntrusivePtr();
    }
    static c10::DeviceType device_type() { return c10::kPrivateUse1; }

   private:
    // In the layout of torch.cuda's state.
    struct Counter {
        uint64_t seed, offset;
    };
    static constexpr uint64_t kDrawn = 4;  // a counter gives four numbers at a time

    void check_offset() const {
        TORCH_CHECK(counts_, "dipu: this generator has no offset (its engine is a Mersenne twister); use get_state and set_state");
    }
    GeneratorImpl* clone_impl() const override {
        auto* copy = new GeneratorImpl(device().index(), counts_, engine_.clone());
        copy->counter_ = counter_;
        return copy;
    }

    at::Generator engine_;
    const bool counts_;
    Counter counter_;
};

DIPU_API const at::Generator& default_generator(int device);
DIPU_API at::Generator make_generator(int device);
// The engine inside a dipu generator, for kernels of the host.
DIPU_API at::Generator engine_of(const at::Generator& generator);
// What a vendor's function is given: the generator itself if the vendor counts, else its engine.
DIPU_API at::Generator vendor_generator(const at::Generator& generator);

}  // namespace dipu
