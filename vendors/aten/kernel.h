// How an operator is written over ATen's kernels: read the handles, launch a body on the context's stream. The operators of this folder are
// compiled into each chip that has such kernels; what a chip does its own way is in its chip.h.
//
//   diopiError_t diopiHardswish(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) {
//       return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x) { kernels::hardswish_out(o, x); }, out, input);
//   }
//
// The body owns what it needs (tensors by value, lists copied): in asynchronous mode it runs later, on the stream's own
// thread, when the caller's handles are gone. It may throw, and so may reading the arguments; the error is reported with the
// operator's name, at once in synchronous mode, else by the next synchronisation of the stream. `LAUNCH` is the same for bodies
// that capture what they need: LAUNCH(ctx, __func__, [o = view(out), x = view(input)]() mutable { ... }).
//
// Results whose size depends on the data need the inputs' values now: `run_now` waits for the stream, runs the body at once, and
// `require_like` makes the output.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <diopi/diopirt.h>
#include <diopi/functions.h>

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "chip.h"
#include "errors.h"

namespace dipu_vendor {

using Dims = c10::SmallVector<int64_t, 5>;

// A tensor for kernels over the device memory of a handle: same sizes, strides and dtype. The handle must not be NULL. Handles of one call
// that share memory give tensors that share a storage.
at::Tensor view(diopiConstTensorHandle_t handle);
// NULL becomes an absent optional, or an undefined tensor.
std::optional<at::Tensor> optional_view(diopiConstTensorHandle_t handle);
at::Tensor view_or_undefined(diopiConstTensorHandle_t handle);

at::Scalar scalar(const diopiScalar_t* value);
std::optional<at::Scalar> optional_scalar(const diopiScalar_t* value);
Dims dims(diopiSize_t size);
at::ScalarType scalar_type(diopiDtype_t dtype);
diopiDtype_t diopi_dtype(at::ScalarType type);

// Forgets the operands of the call before.
void begin_call();

// One way out for everything that throws.
template <class Body>
diopiError_t guarded(const char* name, Body&& body) {
    begin_call();
    try {
        body();
        return diopiSuccess;
    } catch (const std::exception& error) {
        set_error(std::string(name) + ": " + kind_of(error) + what(error));
    } catch (...) {
        set_error(std::string(name) + ": an unknown error");
    }
    return diopiErrorOccurred;
}

// `prepare` reads the handles and gives the body.
template <class Prepare>
diopiError_t launch(diopiContextHandle_t ctx, const char* name, Prepare&& prepare) {
    return guarded(name, [&] {
        auto body = prepare();
        in_order(ctx, name, body);
    });
}
#define LAUNCH(ctx, name, ...) launch(ctx, name, [&] { return __VA_ARGS__; })

// ---- arguments of `run`, by their C type ----

// An argument that may be NULL: a std::optional of what it is otherwise.
template <class Handle>
struct Maybe {
    Handle handle;
};
template <class Handle>
Maybe<Handle> maybe(Handle handle) {
    return {handle};
}
// `count` handles: a std::vector<at::Tensor>; absent ones are undefined tensors.
template <class Handle>
struct HandleList {
    Handle* handles;
    int64_t count;
};
template <class Handle>
HandleList<Handle> list(Handle* handles, int64_t count) {
    return {handles, count};
}

inline at::Tensor argument(diopiConstTensorHandle_t handle) { return view(handle); }
inline std::optional<at::Tensor> argument(Maybe<diopiConstTensorHandle_t> given) { return optional_view(given.handle); }
inline std::optional<at::Tensor> argument(Maybe<diopiTensorHandle_t> given) { return optional_view(given.handle); }
inline at::Scalar argument(const diopiScalar_t* value) { return scalar(value); }
inline std::optional<at::Scalar> argument(Maybe<const diopiScalar_t*> given) { return optional_scalar(given.handle); }
inline Dims argument(diopiSize_t size) { return dims(size); }
inline std::string argument(const char* text) {
    TORCH_CHECK(text, "a text is NULL");
    return text;
}
template <class T>
std::optional<T> optional_number(const T* value) {
    return value ? std::optional<T>(*value) : std::nullopt;
}
inline std::optional<int64_t> argument(const int64_t* value) { return optional_number(value); }
inline std::optional<double> argument(const double* value) { return optional_number(value); }
inline std::optional<bool> argument(const bool* value) { return optional_number(value); }
std::vector<at::Tensor> argument(HandleList<diopiConstTensorHandle_t> given);
std::vector<at::Tensor> argument(HandleList<diopiTensorHandle_t> given);
template <class T, class = std::enable_if_t<std::is_arithmetic_v<T> || std::is_enum_v<T>>>
T argument(T value) {
    return value;
}

// A tensor the kernel writes. ATen resizes an output of the wrong shape; here the caller has allocated it, so that is an error.
struct Written {
    at::Tensor tensor;
    Dims sizes;
    explicit Written(diopiTensorHandle_t handle) : tensor(view(handle)), sizes(tensor.sizes().begin(), tensor.sizes().end()) {}
    operator at::Tensor&() { return tensor; }
    void check() const;
};
inline Written argument(diopiTensorHandle_t handle) { return Written(handle); }
inline void check_written(const Written& written) { written.check(); }
template <class T>
void check_written(const T&) {}

// Converts the arguments, then calls `body` with them in the stream's order.
template <class Body, class... Arguments>
diopiError_t run(diopiContextHandle_t ctx, const char* name, Body body, Arguments... arguments) {
    return launch(ctx, name, [&] {
        return [body, owned = std::make_tuple(argument(arguments)...)]() mutable {
            std::apply(
                [&](auto&... values) {
                    body(values...);
                    (check_written(values), ...);
                },
                owned);
        };
    });
}

// Runs at once, after everything that is queued on the stream.
template <class Body>
diopiError_t run_now(diopiContextHandle_t ctx, const char* name, Body&& body) {
    return guarded(name, [&] { in_order_now(ctx, body); });
}

// A new device tensor with the values of `result`.
diopiTensorHandle_t require_like(diopiContextHandle_t ctx, const at::Tensor& result);

// The same values in the dtype in which ATen accumulates: float32 for half dtypes, which some of its kernels do not know.
at::Tensor upcast(const at::Tensor& tensor);
// The same where the chip's kernels would add up halves as halves; elsewhere the tensor itself.
inline at::Tensor for_sums(const at::Tensor& tensor) {
    if constexpr (kKernelsNeedUpcast) return upcast(tensor);
    return tensor;
}

}  // namespace dipu_vendor
