// Products of quantised tensors.
#pragma once
#include "kernels/quantised.h"
#include "matmul.h"

namespace dlinfer {

/// a [rows, in] times b [out, in] transposed, without scales yet.
inline IntegerProduct integer_product(const Rows& a, const at::Tensor& b, const at::Tensor& result) {
    IntegerProduct product{};
    product.a = readable<int8_t>(a.tensor);
    product.a_stride = a.stride;
    product.b = readable<int8_t>(b);
    product.b_stride = b.stride(0);
    product.result = writable(result);
    product.result_kind = kind_of(result.scalar_type());
    product.rows = a.count;
    product.in = a.size;
    product.out = b.size(0);
    return product;
}

/// Weights as these products read them.
inline at::Tensor dense_rows(const at::Tensor& b) { return has_dense_rows(b) ? b : b.contiguous(); }

}  // namespace dlinfer
