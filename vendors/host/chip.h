// What the operators that chips share (vendors/aten) ask of the simulated chip. Every chip has a header of this name.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>
#include <diopi/diopirt.h>

#include <utility>

#include "../aten/scope.h"
#include "device_memory.h"
#include "queue.h"

// The header of an operator's kernels, which are called without dispatch.
#define KERNELS(op) <ATen/ops/op##_cpu_dispatch.h>
namespace at::cpu {}

namespace dipu_vendor {

namespace kernels = at::cpu;
constexpr c10::DispatchKey kKernelKey = c10::DispatchKey::CPU;
constexpr const char* kVendorName = "host";

// Kernels write where indices point to, and stop the program for a division without a result: operators look at values first.
constexpr bool kKernelsNeedChecks = true;
// Kernels add up halves as halves.
constexpr bool kKernelsNeedUpcast = true;

// Where kernels find device memory, and the device their tensors are on.
inline void* kernel_address(const void* pointer) { return untag(pointer); }
inline c10::Device kernel_device(diopiConstTensorHandle_t) { return c10::Device(c10::kCPU); }

// Whether kernels run later, when the caller's handles are gone.
inline bool kernels_run_later() { return asynchronous(); }

Stream* stream_of(diopiContextHandle_t ctx);

// `DIPU_HOST_NUMERICS=reordered`: sums are to be split and blocked (reordered.h).
bool reordered();

// What holds while a call draws or runs a kernel itself.
struct CallScope : KernelScope {
    explicit CallScope(diopiContextHandle_t) {}
};

// Runs the body in the order of the context's stream.
template <class Body>
void in_order(diopiContextHandle_t ctx, const char* name, Body& body) {
    if (!asynchronous()) {
        KernelScope scope;
        body();
        return;
    }
    // std::function wants a copyable body, as the bodies are
    stream_of(ctx)->push(name, [body = std::move(body)]() mutable {
        KernelScope scope;
        body();
    });
}

// Runs the body at once, after everything that is queued on the stream.
template <class Body>
void in_order_now(diopiContextHandle_t ctx, Body& body) {
    if (asynchronous()) stream_of(ctx)->synchronize();
    KernelScope scope;
    body();
}

}  // namespace dipu_vendor
