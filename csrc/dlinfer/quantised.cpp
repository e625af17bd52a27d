// Linear layers whose activations are quantised too.
#include "quantised.h"

#include "bindings.h"

namespace dlinfer {
namespace {

using at::Tensor;

Tensor linear_w8a8_of(const Tensor& a, const Tensor& b, const Tensor& rms_scale, const Tensor& linear_scale, at::ScalarType out_dtype,
                      at::ScalarType quant_dtype, const std::optional<Tensor>& bias) {
    const bool kernel = quant_dtype == at::kChar && has_kind(out_dtype) && has_kind(rms_scale.scalar_type());
    if (!kernel || !a.numel() || !b.numel() || b.size(1) > MOST_INTEGERS)
        return reference<Tensor>("linear_w8a8", a, b, rms_scale, linear_scale, out_dtype, quant_dtype, bias);
    const Rows rows(a);
    const Tensor weights = dense_rows(b), result = result_like(a, b.size(0), out_dtype);
    const Floats row_scale(rms_scale), column_scale(linear_scale), added(bias);
    auto product = integer_product(rows, weights, result);
    product.row_scale = row_scale.data;
    product.row_scales = rms_scale.numel() > 1;
    product.column_scale = column_scale.data;
    product.column_scales = linear_scale.numel() > 1;
    product.bias = added.data;
    DLINFER_PICK(multiply_integers)(product);
    return result;
}

Tensor linear_w8a8_static_of(const Tensor& x, const Tensor& weight, const Tensor& input_scale, const Tensor& input_offset,
                             const Tensor& deq_scale, at::ScalarType out_dtype, at::ScalarType quant_dtype,
                             const std::optional<Tensor>& quant_bias) {
    if (!has_kind(x.scalar_type()) || !has_kind(out_dtype) || !x.numel() || !weight.numel() || weight.size(1) > MOST_INTEGERS)
        return reference<Tensor>("linear_w8a8_static", x, weight, input_scale, input_offset, deq_scale, out_dtype, quant_dtype, quant_bias);
    const Tensor given = x.contiguous(), quantised = at::empty(x.sizes(), x.options().dtype(at::kChar));
    const Floats scale(input_scale), offset(input_offset), column_scale(deq_scale);
    DLINFER_PICK(quantise_fixed)
    ({readable(given), writable<int8_t>(quantised), given.numel(), kind_of(x.scalar_type()), *scale.data, *offset.data});
    const Tensor weights = dense_rows(weight), result = result_like(x, weight.size(0), out_dtype);
    const Tensor added = quant_bias ? quant_bias->contiguous() : Tensor();
    const float one = 1;
    auto product = integer_product(Rows(quantised), weights, result);
    product.whole_bias = added.defined() ? readable<int32_t>(added) : nullptr;
    product.row_scale = &one;
    product.column_scale = column_scale.data;
    product.column_scales = true;
    DLINFER_PICK(multiply_integers)(product);
    return result;
}

}  // namespace

void bind_quantised(pybind11::module_& module) {
    using Free = pybind11::call_guard<pybind11::gil_scoped_release>;
    using pybind11::arg;
    module.def("linear_w8a8", &linear_w8a8_of, arg("a"), arg("b"), arg("rms_scale"), arg("linear_scale"), arg("out_dtype"), arg("quant_dtype"),
               arg("bias") = pybind11::none(), Free());
    module.def("linear_w8a8_static", &linear_w8a8_static_of, arg("x"), arg("weight"), arg("input_scale"), arg("input_offset"), arg("deq_scale"),
               arg("out_dtype"), arg("quant_dtype"), arg("quant_bias") = pybind11::none(), Free());
}

}  // namespace dlinfer
