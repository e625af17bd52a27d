// Results that a kernel makes by itself, into the tensors the caller has allocated: of exactly that shape, whatever their strides
// and dtype.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "kernel.h"

namespace dipu_vendor {

inline void check_shape(const at::Tensor& tensor, at::IntArrayRef sizes, const char* name = "the output") {
    TORCH_CHECK(tensor.defined(), name, " is NULL but must be given");
    TORCH_CHECK(tensor.sizes() == sizes, name, " has the shape ", tensor.sizes(), " instead of ", sizes);
}

inline void check_same_shape(const at::Tensor& a, const at::Tensor& b, const char* names) {
    TORCH_CHECK(a.sizes() == b.sizes(), names, " differ in shape: ", a.sizes(), " and ", b.sizes());
}

inline void check_count(const at::Tensor& tensor, int64_t expected, const char* name) {
    TORCH_CHECK(tensor.numel() == expected, name, " has ", tensor.numel(), " elements instead of ", expected);
}
inline void check_count(const std::optional<at::Tensor>& tensor, int64_t expected, const char* name) {
    if (tensor) check_count(*tensor, expected, name);
}

// Converts to the dtype of the output. A copy alone would repeat a result that is too small.
inline void write(const at::Tensor& out, const at::Tensor& result, const char* name = "the output") {
    TORCH_CHECK(result.defined(), "there is no such result for these arguments; ", name, " must be NULL");
    check_shape(out, result.sizes(), name);
    out.copy_(result);
}

// An output that is NULL is not wanted.
inline void write(const std::optional<at::Tensor>& out, const at::Tensor& result, const char* name = "the output") {
    if (out) write(*out, result, name);
}

inline void write_all(const std::vector<at::Tensor>& outs, const std::vector<at::Tensor>& results) {
    TORCH_CHECK(outs.size() == results.size(), "there are ", outs.size(), " outputs for ", results.size(), " results");
    for (size_t i = 0; i < outs.size(); ++i) write(outs[i], results[i]);
}

// The tensors of a list in which none may be absent.
inline const std::vector<at::Tensor>& given(const std::vector<at::Tensor>& tensors) {
    for (const auto& tensor : tensors) TORCH_CHECK(tensor.defined(), "a tensor of the list is NULL that must be given");
    return tensors;
}

// Where the function puts what it makes itself.
inline void check_pointer(const void* pointer) { TORCH_CHECK(pointer, "the pointer for a result is NULL"); }

}  // namespace dipu_vendor
