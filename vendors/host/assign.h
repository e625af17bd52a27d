// Writing a result into the tensor the caller has allocated: of exactly that shape, whatever its strides and dtype.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "kernel.h"

namespace dipu_host {

inline void check_shape(const at::Tensor& out, at::IntArrayRef sizes) {
    TORCH_CHECK(out.defined(), "an output is NULL that must be given");
    TORCH_CHECK(out.sizes() == sizes, "the output has the shape ", out.sizes(), " but the result has ", sizes);
}

// copy_ alone would repeat a result that is too small.
inline void assign(at::Tensor& out, const at::Tensor& result) {
    check_shape(out, result.sizes());
    out.copy_(result);
}

// The tensors of a list in which none may be absent.
inline const std::vector<at::Tensor>& given(const std::vector<at::Tensor>& tensors) {
    for (const auto& tensor : tensors) TORCH_CHECK(tensor.defined(), "a tensor of the list is NULL that must be given");
    return tensors;
}

inline void assign_all(std::vector<at::Tensor>& outs, const std::vector<at::Tensor>& results) {
    TORCH_CHECK(outs.size() == results.size(), "there are ", outs.size(), " outputs for ", results.size(), " results");
    for (size_t i = 0; i < outs.size(); ++i) assign(outs[i], results[i]);
}

// Where the function puts what it makes itself.
inline void check_place(const void* place) { TORCH_CHECK(place, "the place of a result is NULL"); }

}  // namespace dipu_host
