// Tensors as products take them.
#pragma once
#include <ATen/ATen.h>

#include "forms.h"
#include "kernels/gemm.h"

namespace dlinfer {

/// x [..., in] as rows whose elements are neighbours; what is not laid out so is copied.
struct Rows {
    at::Tensor tensor;
    int64_t count, size, stride;

    explicit Rows(const at::Tensor& x)
        : tensor(x.is_contiguous() || (x.dim() == 2 && x.stride(1) == 1) ? x : x.contiguous()),
          count(x.size(-1) ? x.numel() / x.size(-1) : 0),
          size(x.size(-1)),
          stride(tensor.is_contiguous() ? size : tensor.stride(0)) {}
};

/// [..., features].
inline at::Tensor result_like(const at::Tensor& x, int64_t features, at::ScalarType type) {
    at::DimVector shape(x.sizes());
    shape.back() = features;
    return at::empty(shape, x.options().dtype(type));
}

/// One float for each output feature, or nothing; holds the memory.
struct Floats {
    at::Tensor tensor;
    const float* data = nullptr;

    Floats() = default;
    explicit Floats(const at::Tensor& value)
        : tensor(value.to(at::kFloat).contiguous()), data(tensor.const_data_ptr<float>()) {}
    explicit Floats(const std::optional<at::Tensor>& value) {
        if (value) *this = Floats(*value);
    }
};

}  // namespace dlinfer
