// How an operator of the simulated chip is written: read the handles, launch a body on the context's stream.
//
//   diopiError_t diopiExp(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) {
//     return launch(ctx, __func__, [o = view(out), x = view(input)]() mutable { at::cpu::exp_out(o, x); });
//   }
//
// The body owns what it needs (tensors by value, lists copied): in asynchronous mode it runs later, on the stream's own
// thread, when the caller's handles are gone. It may throw; the error is reported with the operator's name, at once in
// synchronous mode, else by the next synchronisation of the stream.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <diopi/diopirt.h>
#include <diopi/functions.h>

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "queue.h"

namespace dipu_host {

using Dims = c10::SmallVector<int64_t, 5>;

// A CPU tensor over the device memory of a handle: same sizes, strides and dtype. The handle must not be NULL.
at::Tensor view(diopiConstTensorHandle_t handle);
// NULL becomes an absent optional, or an undefined tensor.
std::optional<at::Tensor> optional_view(diopiConstTensorHandle_t handle);
at::Tensor view_or_undefined(diopiConstTensorHandle_t handle);
std::vector<at::Tensor> views(diopiConstTensorHandle_t* handles, int64_t count);

at::Scalar scalar(const diopiScalar_t* value);
std::optional<at::Scalar> optional_scalar(const diopiScalar_t* value);
inline Dims dims(diopiSize_t size) { return Dims(size.data, size.data + size.len); }
at::ScalarType scalar_type(diopiDtype_t dtype);

// `DIPU_HOST_NUMERICS=reordered`: sums are to be split and blocked (reordered.h).
bool reordered();

void set_error(const std::string& message);
const char* last_error();
Stream* stream_of(diopiContextHandle_t ctx);

// Kernels run below autograd and autocast, whatever the calling thread has switched on.
struct KernelScope {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

template <class Body>
diopiError_t launch(diopiContextHandle_t ctx, const char* name, Body&& body) {
    try {
        if (!asynchronous()) {
            KernelScope scope;
            body();
            return diopiSuccess;
        }
        // std::function wants a copyable body, as the bodies are
        stream_of(ctx)->push(name, [body = std::forward<Body>(body)]() mutable {
            KernelScope scope;
            body();
        });
        return diopiSuccess;
    } catch (const std::exception& error) {
        set_error(std::string(name) + ": " + what(error));
        return diopiErrorOccurred;
    }
}

}  // namespace dipu_host
