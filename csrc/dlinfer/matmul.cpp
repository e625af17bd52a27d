// Linear layers.
#include "matmul.h"

#include "arguments.h"
#include "bindings.h"

namespace dlinfer {
namespace {

using at::Tensor;

// Up to here a product is limited by the memory that weights come from; from here on torch's own is faster.
constexpr int64_t FEW_ROWS = 32;

Stored stored_as(at::ScalarType type) {
    return type == at::kFloat ? Stored::f32 : type == at::kBFloat16 ? Stored::bf16 : Stored::f16;
}

Tensor linear_of(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
    const int64_t in = weight.size(1), out = weight.size(0), count = in ? x.numel() / in : 0;
    const bool neighbours = weight.stride(1) == 1 || in == 1;
    if (!has_kind(x.scalar_type()) || !count || !out || count > FEW_ROWS || !neighbours) return at::linear(x, weight, bias);
    const Rows rows(x);
    const Floats added(bias);
    const Tensor result = result_like(x, out, x.scalar_type());
    const Kind kind = kind_of(x.scalar_type());
    Product product{};
    product.x = rows.tensor.const_data_ptr();
    product.x_stride = rows.stride;
    product.x_kind = product.result_kind = kind;
    product.weight = weight.const_data_ptr();
    product.weight_stride = weight.stride(0);
    product.stored = stored_as(weight.scalar_type());
    product.result = result.mutable_data_ptr();
    product.result_stride = out;
    product.rows = count;
    product.in = in;
    product.out = out;
    product.bias = added.data;
    DLINFER_PICK(multiply_rows)(product);
    return result;
}

}  // namespace

void bind_matmul(pybind11::module_& module) {
    using Free = pybind11::call_guard<pybind11::gil_scoped_release>;
    using pybind11::arg;
    module.def("linear", &linear_of, arg("x"), arg("weight"), arg("bias") = pybind11::none(), Free());
}

}  // namespace dlinfer
