// Random numbers are drawn with torch's CPU generators, so that the same seed gives the same numbers as on the CPU.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <mutex>

#include "kernel.h"

namespace dipu_vendor {

// A generator of the caller's as a CPU generator, for one draw. The state travels as the bytes torch's CPU generator keeps.
// One lease at a time, so that two threads do not draw the same numbers from one generator.
class GeneratorLease {
   public:
    GeneratorLease(diopiContextHandle_t ctx, diopiGeneratorHandle_t handle) : handle_(handle) {
        TORCH_CHECK(handle_, "the generator is NULL that must be given");
        require(diopiGeneratorGetState(ctx, handle_, &state_), "the generator's state cannot be read");
        generator_.set_state(state());
    }

    at::Generator& operator*() { return generator_; }
    c10::Device device() const { return c10::Device(c10::kCPU); }

    // To be called after the draw; without it the caller's generator stays where it was.
    void give_back() {
        state().copy_(generator_.get_state());
        require(diopiGeneratorSetState(handle_, state_), "the generator's state cannot be written");
    }

   private:
    static void require(diopiError_t error, const char* message) { TORCH_CHECK(error == diopiSuccess, message); }

    // The state lies in ordinary host memory.
    at::Tensor state() {
        void* data = nullptr;
        int64_t bytes = 0;
        TORCH_CHECK(state_, "the generator has no state");
        require(diopiGetTensorData(state_, &data), "the generator's state has no data");
        require(diopiGetTensorNumel(state_, &bytes), "the generator's state has no size");
        return at::from_blob(data, {bytes}, at::TensorOptions().dtype(at::kByte));
    }

    static std::mutex& one_at_a_time() {
        static std::mutex mutex;
        return mutex;
    }

    static at::Generator& scratch() {
        static at::Generator generator = at::detail::createCPUGenerator();  // seeding one costs more than most draws
        return generator;
    }

    std::lock_guard<std::mutex> lock_{one_at_a_time()};
    diopiGeneratorHandle_t handle_;
    diopiTensorHandle_t state_ = nullptr;
    at::Generator& generator_ = scratch();
};

}  // namespace dipu_vendor
