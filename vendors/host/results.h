// Results that a kernel makes by itself, into the tensors of the caller.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "kernel.h"

namespace dipu_host {

// Converts to the dtype of the output. A copy would also broadcast, so shapes are compared.
inline void write(at::Tensor& out, const at::Tensor& result) {
    TORCH_CHECK(result.defined(), "there is no such result for these arguments; its output must be NULL");
    TORCH_CHECK(out.sizes() == result.sizes(), "the output has the shape ", out.sizes(), " but the result has ", result.sizes());
    out.copy_(result);
}

// An output that is NULL is not wanted.
inline void write(std::optional<at::Tensor>& out, const at::Tensor& result) {
    if (out) write(*out, result);
}

inline void check_count(const at::Tensor& tensor, int64_t expected, const char* name) {
    TORCH_CHECK(tensor.numel() == expected, name, " has ", tensor.numel(), " elements instead of ", expected);
}
inline void check_count(const std::optional<at::Tensor>& tensor, int64_t expected, const char* name) {
    if (tensor) check_count(*tensor, expected, name);
}

inline void check_same_shape(const at::Tensor& a, const at::Tensor& b, const char* names) {
    TORCH_CHECK(a.sizes() == b.sizes(), names, " differ in shape: ", a.sizes(), " and ", b.sizes());
}

}  // namespace dipu_host
