// What the operators that chips share (vendors/aten) ask of an NVIDIA card. Every chip has a header of this name.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>
#include <c10/cuda/CUDAGuard.h>
#include <diopi/diopirt.h>

#include "../aten/scope.h"
#include "stream.h"

// The header of an operator's kernels, which are called without dispatch.
#define KERNELS(op) <ATen/ops/op##_cuda_dispatch.h>
namespace at::cuda {}

namespace dipu_vendor {

namespace kernels = at::cuda;
constexpr c10::DispatchKey kKernelKey = c10::DispatchKey::CUDA;
constexpr const char* kVendorName = "cuda";

// Kernels look at indices themselves (an assertion on the device), and add up halves in float32.
constexpr bool kKernelsNeedChecks = false;
constexpr bool kKernelsNeedUpcast = false;

inline void* kernel_address(const void* pointer) { return const_cast<void*>(pointer); }
inline c10::Device kernel_device(diopiConstTensorHandle_t handle) {
    diopiDeviceIndex_t index = 0;
    diopiGetTensorDeviceIndex(handle, &index);
    return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index < 0 ? 0 : index));
}

// A kernel is queued by the thread that calls, while the caller's handles live.
constexpr bool kernels_run_later() { return false; }
// Sums have one order here.
constexpr bool reordered() { return false; }

Stream& stream_of(diopiContextHandle_t ctx);

// Kernels are queued on the context's stream, and their temporaries come from the framework's memory (memory.cpp).
class CallScope {
   public:
    explicit CallScope(diopiContextHandle_t ctx) : guard_(stream_of(ctx).torch) { ++depth(); }
    ~CallScope() { --depth(); }
    CallScope(const CallScope&) = delete;
    CallScope& operator=(const CallScope&) = delete;
    static bool active() { return depth() > 0; }

   private:
    static int& depth() {
        thread_local int calls = 0;
        return calls;
    }
    c10::cuda::CUDAStreamGuard guard_;
    KernelScope kernels_;
};

template <class Body>
void in_order(diopiContextHandle_t ctx, const char*, Body& body) {
    CallScope scope(ctx);
    body();
}

// What the host reads of the device in the body waits by itself.
template <class Body>
void in_order_now(diopiContextHandle_t ctx, Body& body) {
    CallScope scope(ctx);
    body();
}

}  // namespace dipu_vendor
