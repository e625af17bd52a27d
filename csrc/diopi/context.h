// The framework's side of the DIOPI handles: a tensor handle is a pointer to an at::Tensor, a generator handle one to an
// at::Generator, a context is what one operator call works with.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <diopi/diopirt.h>

#include <deque>
#include <exception>
#include <optional>

#include "../runtime/device.h"

namespace dipu {

struct Context {
    int device;
    std::deque<at::Tensor> owned;  // what the vendor required; lives until the call is over (addresses are stable)
    std::exception_ptr failure;    // of a function the vendor called back; raised instead of the vendor's error

    explicit Context(int device) : device(device) {}
    diopiContextHandle_t handle() { return reinterpret_cast<diopiContextHandle_t>(this); }
};

inline diopiTensorHandle_t handle(at::Tensor& tensor) {
    return tensor.defined() ? reinterpret_cast<diopiTensorHandle_t>(&tensor) : nullptr;
}
inline diopiConstTensorHandle_t handle(const at::Tensor& tensor) {
    return tensor.defined() ? reinterpret_cast<diopiConstTensorHandle_t>(&tensor) : nullptr;
}
// Optional tensors may be written by the vendor (running statistics), so they give a mutable handle.
inline diopiTensorHandle_t handle(const std::optional<at::Tensor>& tensor) {
    return tensor && tensor->defined() ? reinterpret_cast<diopiTensorHandle_t>(const_cast<at::Tensor*>(&*tensor)) : nullptr;
}
inline const at::Tensor& tensor_of(diopiConstTensorHandle_t handle) { return *reinterpret_cast<const at::Tensor*>(handle); }
inline at::Tensor& tensor_of(diopiTensorHandle_t handle) { return *reinterpret_cast<at::Tensor*>(handle); }

DIPU_API diopiDtype_t diopi_dtype(at::ScalarType type);
DIPU_API at::ScalarType aten_dtype(diopiDtype_t dtype);

}  // namespace dipu
