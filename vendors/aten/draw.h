// Random numbers are drawn with a generator of the chip's (generator.h), so that the same seed gives the same numbers as torch's own device.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>

#include "generator.h"
#include "kernel.h"

namespace dipu_vendor {

// Draws now, on the calling thread: states must advance in the order of the calls, whatever the streams do. Throws.
template <class Draw>
void draw_now(diopiContextHandle_t ctx, diopiGeneratorHandle_t handle, Draw&& draw) {
    CallScope scope(ctx);
    GeneratorLease lease(ctx, handle);
    draw(*lease);
    lease.give_back();
}

// Overwrites `inout` with numbers that depend on its shape only; on an asynchronous stream they are drawn into a temporary
// and written in turn.
template <class Draw>
diopiError_t fill_random(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t inout, diopiGeneratorHandle_t handle,
                         Draw draw) {
    at::Tensor target, drawn;
    const auto error = guarded(name, [&] {
        target = view(inout);
        drawn = kernels_run_later() ? at::empty_strided(target.sizes(), target.strides(), target.options()) : target;
        draw_now(ctx, handle, [&](at::Generator& generator) { draw(drawn, generator); });
    });
    if (error != diopiSuccess || !kernels_run_later()) return error;
    return LAUNCH(ctx, name, [target, drawn]() mutable { target.copy_(drawn); });
}

// Draws that depend on the values of tensors: after everything that is queued on the stream.
template <class Draw>
diopiError_t draw_from_values(diopiContextHandle_t ctx, const char* name, diopiGeneratorHandle_t handle, Draw draw) {
    return run_now(ctx, name, [&] { draw_now(ctx, handle, draw); });
}

}  // namespace dipu_vendor
