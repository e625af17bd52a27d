// Tensors as products take them.
#pragma once
#include <ATen/ATen.h>

#include <optional>

#include "arguments.h"
#include "kernels/gemm.h"
#include "kernels/quantised.h"

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

/// Raises for a dtype that has no dtype.
inline Stored stored_as(at::ScalarType type) {
    const Dtype dtype = dtype_of(type);
    return dtype == Dtype::f32 ? Stored::f32 : dtype == Dtype::bf16 ? Stored::bf16 : Stored::f16;
}

/// What all products of tensors have in common; scales, biases and groups come on top.
Product product_of(const Rows& rows, const Weight& weight, Stored stored, const at::Tensor& result);

/// Few rows by the kernels that read weights once, many by torch's product with weights that are made floats.
void multiply(const Product& product, bool columns);

// ---- integers ----

/// a [rows, in] times b [out, in] transposed, without scales yet.
inline IntegerProduct integer_product(const Rows& a, const at::Tensor& b, const at::Tensor& result) {
    IntegerProduct product{};
    product.a = readable<int8_t>(a.tensor);
    product.a_stride = a.stride;
    product.b = readable<int8_t>(b);
    product.b_stride = b.stride(0);
    product.result = writable(result);
    product.result_dtype = dtype_of(result.scalar_type());
    product.rows = a.count;
    product.in = a.size;
    product.out = b.size(0);
    return product;
}

/// Weights as these products read them.
inline at::Tensor dense_rows(const at::Tensor& b) { return has_dense_rows(b) ? b : b.contiguous(); }

}  // namespace dlinfer
