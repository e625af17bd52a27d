// Random numbers: drawn with torch's CPU generators, so that the same seed gives the same numbers as on the CPU.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bernoulli_cpu_dispatch.h>
#include <ATen/ops/div_cpu_dispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <ATen/ops/ne_cpu_dispatch.h>
#include <ATen/ops/normal_cpu_dispatch.h>
#include <ATen/ops/uniform_cpu_dispatch.h>

#include <mutex>
#include <stdexcept>

#include "kernel.h"

using namespace dipu_host;

namespace {

// A generator of the caller's as a CPU generator, for one draw. The state travels as the bytes torch's CPU generator keeps.
// One lease at a time, so that two threads do not draw the same numbers from one generator.
class GeneratorLease {
   public:
    GeneratorLease(diopiContextHandle_t ctx, diopiGeneratorHandle_t handle) : handle_(handle) {
        require(diopiGeneratorGetState(ctx, handle_, &state_), "the generator's state cannot be read");
        generator_.set_state(state());
    }

    at::Generator& operator*() { return generator_; }

    // To be called after the draw; without it the caller's generator stays where it was.
    void give_back() {
        state().copy_(generator_.get_state());
        require(diopiGeneratorSetState(handle_, state_), "the generator's state cannot be written");
    }

   private:
    static void require(diopiError_t error, const char* message) {
        if (error != diopiSuccess) throw std::runtime_error(message);
    }

    // The state lies in ordinary host memory.
    at::Tensor state() {
        void* data = nullptr;
        int64_t bytes = 0;
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

// Draws now, on the calling thread: states must advance in the order of the calls, whatever the streams do.
template <class Draw>
diopiError_t draw_now(diopiContextHandle_t ctx, const char* name, diopiGeneratorHandle_t handle, Draw draw) {
    try {
        KernelScope scope;
        GeneratorLease lease(ctx, handle);
        draw(*lease);
        lease.give_back();
        return diopiSuccess;
    } catch (const std::exception& error) {
        set_error(std::string(name) + ": " + what(error));
        return diopiErrorOccurred;
    }
}

// Overwrites `inout` with numbers; on an asynchronous stream they are drawn into a temporary and written in turn.
template <class Draw>
diopiError_t fill_random(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t inout, diopiGeneratorHandle_t handle,
                         Draw draw) {
    at::Tensor target = view(inout);
    if (!asynchronous()) return draw_now(ctx, name, handle, [&](at::Generator& generator) { draw(target, generator); });
    at::Tensor drawn = at::detail::empty_strided_cpu(target.sizes(), target.strides(), target.scalar_type());
    const auto error = draw_now(ctx, name, handle, [&](at::Generator& generator) { draw(drawn, generator); });
    if (error != diopiSuccess) return error;
    return LAUNCH(ctx, name, [target, drawn]() mutable { target.copy_(drawn); });
}

}  // namespace

diopiError_t diopiUniformInp(diopiContextHandle_t ctx, diopiTensorHandle_t inout, double from, double to,
                             diopiGeneratorHandle_t generator) {
    return fill_random(ctx, __func__, inout, generator,
                       [from, to](at::Tensor& x, at::Generator& g) { at::cpu::uniform_(x, from, to, g); });
}

diopiError_t diopiNormalInp(diopiContextHandle_t ctx, diopiTensorHandle_t inout, double mean, double std,
                            diopiGeneratorHandle_t generator) {
    return fill_random(ctx, __func__, inout, generator,
                       [mean, std](at::Tensor& x, at::Generator& g) { at::cpu::normal_(x, mean, std, g); });
}

// As torch's own dropout on the CPU: noise of the input's dtype, 0 or 1/(1-p), times the input.
diopiError_t diopiDropout(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t mask,
                          diopiConstTensorHandle_t input, double p, bool train, diopiGeneratorHandle_t generator) {
    if (!train) {
        return LAUNCH(ctx, __func__, [o = view(out), m = view(mask), x = view(input)]() mutable { o.copy_(x), m.fill_(true); });
    }
    at::Tensor x = view(input), noise;
    const auto error = draw_now(ctx, __func__, generator, [&](at::Generator& g) {
        noise = at::empty_like(x);
        at::cpu::bernoulli_(noise, 1 - p, g);
    });
    if (error != diopiSuccess) return error;
    return LAUNCH(ctx, __func__, [o = view(out), m = view(mask), x, noise, p]() mutable {
        at::cpu::ne_out(m, noise, at::Scalar(0));
        if (p < 1) at::cpu::div_(noise, at::native::wrapped_scalar_tensor(1 - p));
        at::cpu::mul_out(o, x, noise);
    });
}
