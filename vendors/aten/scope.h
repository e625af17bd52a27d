// What holds while a kernel runs.
#pragma once
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DispatchKeySet.h>

namespace dipu_vendor {

// Kernels run below autograd and autocast, whatever the calling thread has switched on.
struct KernelScope {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

}  // namespace dipu_vendor
