// Random numbers are drawn with torch's CUDA generators: a seed and an offset, so that the same seed gives the same numbers as torch.cuda.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <mutex>

#include "kernel.h"

namespace dipu_vendor {

// A generator of the caller's as a CUDA generator, for one draw. One lease at a time, so that two threads do not draw the same numbers from one
// generator.
class GeneratorLease {
   public:
    GeneratorLease(diopiContextHandle_t ctx, diopiGeneratorHandle_t handle)
        : handle_(handle), device_(c10::kCUDA, static_cast<c10::DeviceIndex>(stream_of(ctx).device)), generator_(scratch(device_.index())) {
        TORCH_CHECK(handle_, "the generator is NULL that must be given");
        uint64_t offset = 0;
        TORCH_CHECK(diopiGeneratorGetSeedAndOffset(handle_, &seed_, &offset) == diopiSuccess, "the generator's seed cannot be read");
        generator_.set_current_seed(seed_);
        generator_.set_offset((offset + 3) / 4 * 4);  // an offset counts blocks of four numbers
    }

    at::Generator& operator*() { return generator_; }
    c10::Device device() const { return device_; }

    // To be called after the draw; without it the caller's generator stays where it was.
    void give_back() {
        TORCH_CHECK(diopiGeneratorSetSeedAndOffset(handle_, seed_, generator_.get_offset()) == diopiSuccess,
                    "the generator's offset cannot be written");
    }

   private:
    static std::mutex& one_at_a_time() {
        static std::mutex mutex;
        return mutex;
    }
    static at::Generator& scratch(c10::DeviceIndex device) {
        static std::array<at::Generator, C10_COMPILE_TIME_MAX_GPUS> generators;
        at::Generator& generator = generators.at(static_cast<size_t>(device));
        if (!generator.defined()) generator = at::cuda::detail::createCUDAGenerator(device);
        return generator;
    }

    std::lock_guard<std::mutex> lock_{one_at_a_time()};
    diopiGeneratorHandle_t handle_;
    c10::Device device_;
    at::Generator& generator_;
    uint64_t seed_ = 0;
};

}  // namespace dipu_vendor
