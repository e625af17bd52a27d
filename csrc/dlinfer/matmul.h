// Tensors as products take them.
#pragma once
#include <ATen/ATen.h>

#include <optional>

#include "arguments.h"
#include "forms.h"
#include "kernels/gemm.h"

namespace dlinfer {

/// x [..., in] as rows whose elements are neighbours; what is not laid out so is copied.
struct Rows {
    at::Tensor tensor;
    int64_t size, count, stride;

    explicit Rows(const at::Tensor& x)
        : tensor(x.is_contiguous() || (x.dim() == 2 && has_dense_rows(x)) ? x : x.contiguous()),
          size(x.size(-1)),
          count(size ? x.numel() / size : 0),
          stride(tensor.is_contiguous() ? size : tensor.stride(0)) {}
};

/// [..., features].
inline at::Tensor result_like(const at::Tensor& x, int64_t features, at::ScalarType type) {
    at::DimVector shape(x.sizes());
    shape.back() = features;
    return at::empty(shape, x.options().dtype(type));
}

/// Numbers of any floating dtype as floats, or nothing; holds the memory.
struct Floats {
    at::Tensor tensor;
    const float* data = nullptr;

    Floats() = default;
    explicit Floats(const at::Tensor& value) : tensor(value.to(at::kFloat).contiguous()), data(readable<float>(tensor)) {}
    explicit Floats(const std::optional<at::Tensor>& value) {
        if (value) *this = Floats(*value);
    }
};

/// A matrix of weights, [out, in] in memory (by rows) or [in, out] (by columns).
struct Weight {
    at::Tensor tensor;
    int64_t stride;
    bool columns;

    /// From a view [out, in]. Unless one of the dimensions is dense, it is copied.
    explicit Weight(const at::Tensor& view) : tensor(view), columns(false) {
        if (!has_dense_rows(tensor)) {
            columns = view.size(0) <= 1 || view.stride(0) == 1;
            if (!columns) tensor = view.contiguous();
        }
        stride = tensor.stride(columns ? 1 : 0);
    }
};

/// Raises for a dtype that has no kind.
inline Stored stored_as(at::ScalarType type) {
    const Kind kind = kind_of(type);
    return kind == Kind::f32 ? Stored::f32 : kind == Kind::bf16 ? Stored::bf16 : Stored::f16;
}

/// What all products of tensors have in common; scales, biases and groups come on top.
Product product_of(const Rows& rows, const Weight& weight, Stored stored, const at::Tensor& result);

/// Few rows by the kernels that read weights once, many by torch's product with weights that are made floats.
void multiply(const Product& product, bool columns);

}  // namespace dlinfer
