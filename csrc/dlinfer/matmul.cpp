// Linear layers, with weights as they are and with weights of 8 and 4 bits.
#include "matmul.h"

#include "bindings.h"

namespace dlinfer {
namespace {

using at::Tensor;

/// Whether this machine multiplies halves as they are.
bool multiplies(Stored halves) {
#if defined(__x86_64__)
    return halves == Stored::bf16 ? __builtin_cpu_supports("avx512bf16") : __builtin_cpu_supports("avx512fp16");
#else
    return true;
#endif
}

/// Whether torch's product takes the weights as they are, and is fast.
bool torch_takes(Stored stored) {
    return stored == Stored::f32 || ((stored == Stored::bf16 || stored == Stored::f16) && multiplies(stored));
}

/// Up to so many rows the kernels are faster: by far as long as memory is the limit. Measured; the later figures are where
/// weights must be made floats before a library can multiply them. Where halves are multiplied as they are, memory is the limit
/// up to about as many rows as weights have bits.
int64_t few_rows(Stored stored, bool columns) {
    if (!torch_takes(stored)) return columns ? 20 : 96;
    return columns ? 12 : stored == Stored::f32 ? 48 : 16;
}

constexpr int64_t PANEL = 4 * COLUMN_UNIT;  // weights [PANEL, in] that are floats at a time

/// Memory of the host as a tensor.
Tensor matrix(const void* data, at::ScalarType type, int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
    return at::from_blob(const_cast<void*>(data), {rows, columns}, {row_stride, column_stride}, at::TensorOptions(type));
}

Tensor x_as_floats(const Product& product) {
    const auto type = product.x_dtype == Dtype::f32 ? at::kFloat : product.x_dtype == Dtype::bf16 ? at::kBFloat16 : at::kHalf;
    return matrix(product.x, type, product.rows, product.in, product.x_stride, 1).to(at::kFloat);
}

void multiply_floats(const Product& product, bool columns) {
    const int64_t along_in = columns ? product.weight_stride : 1, along_out = columns ? 1 : product.weight_stride;
    const auto sums = x_as_floats(product).mm(matrix(product.weight, at::kFloat, product.in, product.out, along_in, along_out));
    DLINFER_PICK(finish_rows)(product, 0, product.out, sums.const_data_ptr<float>(), product.out);
}

/// Weights become floats panel by panel.
void multiply_panels(const Product& product, bool columns) {
    const auto options = at::TensorOptions(at::kFloat);
    const auto x = x_as_floats(product);
    const int64_t width = std::min(PANEL, (product.out + COLUMN_UNIT - 1) / COLUMN_UNIT * COLUMN_UNIT);
    // Zeros: what lies behind the last column is multiplied too.
    const auto memory = at::zeros({width * product.in}, options), sums = at::empty({product.rows * width}, options);
    auto* panel = memory.mutable_data_ptr<float>();
    for (int64_t begin = 0; begin < product.out; begin += width) {
        const int64_t end = std::min(begin + width, product.out);
        const int64_t there = columns ? (end - begin + COLUMN_UNIT - 1) / COLUMN_UNIT * COLUMN_UNIT : end - begin;
        auto part = sums.narrow(0, 0, product.rows * there).view({product.rows, there});
        const auto weights = memory.narrow(0, 0, there * product.in);
        if (columns) {
            DLINFER_PICK(restore_columns)(product, begin, end, panel);
            at::mm_out(part, x, weights.view({product.in, there}));
            DLINFER_PICK(finish_columns)(product, begin, end, part.const_data_ptr<float>(), there);
        } else {
            DLINFER_PICK(restore_rows)(product, begin, end, panel);
            at::mm_out(part, x, weights.view({there, product.in}).t());
            DLINFER_PICK(finish_rows)(product, begin, end, part.const_data_ptr<float>(), there);
        }
    }
}

Tensor linear_of(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
    const auto type = x.scalar_type();
    if (!has_dtype(type) || !x.numel() || !weight.numel()) return at::linear(x, weight, bias);
    const Weight laid(weight);
    const Rows rows(x);
    const Stored stored = stored_as(type);
    if (torch_takes(stored) && rows.count > few_rows(stored, laid.columns)) return at::linear(x, weight, bias);
    const Floats added(bias);
    const Tensor result = result_like(x, weight.size(0), type);
    auto product = product_of(rows, laid, stored, result);
    product.bias = added.data;
    multiply(product, laid.columns);
    return result;
}

Tensor weight_quant_matmul_of(const Tensor& x1, const Tensor& x2, const Tensor& scale, const std::optional<Tensor>& offset,
                              const std::optional<Tensor>& bias, int64_t group_size) {
    if (!has_dtype(x1.scalar_type()) || !x1.numel() || !x2.numel())
        return reference<Tensor>("weight_quant_matmul", x1, x2, scale, offset, bias, group_size);
    const bool packed = x2.scalar_type() == at::kInt, awq = offset && offset->scalar_type() == at::kInt;
    const int64_t out = x2.size(1) * (packed ? 8 : 1);
    // Words hold neighbours along the output: they are read by columns, whatever the strides.
    Weight laid(packed ? (x2.size(1) <= 1 || x2.stride(1) == 1 ? x2 : x2.contiguous()) : x2.t());
    laid.columns = laid.columns || packed;
    const Rows rows(x1);
    const Floats factor(scale), added(bias), shift(awq ? std::nullopt : offset);
    const Tensor zeros = awq ? offset->contiguous() : Tensor();
    const Tensor result = result_like(x1, out, x1.scalar_type());
    auto product = product_of(rows, laid, packed ? (awq ? Stored::int4_awq : Stored::int4) : Stored::int8, result);
    product.bias = added.data;
    if (!offset && factor.tensor.numel() == out) {
        product.scale = factor.data;
    } else {
        product.group = group_size ? group_size : product.in;
        product.factor = factor.data;
        product.shift = shift.data;
        product.lowered = awq ? readable<uint32_t>(zeros) : nullptr;
    }
    multiply(product, laid.columns);
    return result;
}

// ---- activations of 8 bits ----

Tensor linear_w8a8_of(const Tensor& a, const Tensor& b, const Tensor& rms_scale, const Tensor& linear_scale, at::ScalarType out_dtype,
                      at::ScalarType quant_dtype, const std::optional<Tensor>& bias) {
    const bool kernel = quant_dtype == at::kChar && has_dtype(out_dtype) && has_dtype(rms_scale.scalar_type());
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
    if (!has_dtype(x.scalar_type()) || !has_dtype(out_dtype) || !x.numel() || !weight.numel() || weight.size(1) > MOST_INTEGERS)
        return reference<Tensor>("linear_w8a8_static", x, weight, input_scale, input_offset, deq_scale, out_dtype, quant_dtype, quant_bias);
    const Tensor given = x.contiguous(), quantised = at::empty(x.sizes(), x.options().dtype(at::kChar));
    const Floats scale(input_scale), offset(input_offset), column_scale(deq_scale);
    DLINFER_PICK(quantise_fixed)
    ({readable(given), writable<int8_t>(quantised), given.numel(), dtype_of(x.scalar_type()), *scale.data, *offset.data});
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

Product product_of(const Rows& rows, const Weight& weight, Stored stored, const Tensor& result) {
    Product product{};
    product.x = readable(rows.tensor);
    product.x_stride = rows.stride;
    product.x_dtype = dtype_of(rows.tensor.scalar_type());
    product.weight = readable(weight.tensor);
    product.weight_stride = weight.stride;
    product.stored = stored;
    product.result = writable(result);
    product.result_stride = result.size(-1);
    product.result_dtype = dtype_of(result.scalar_type());
    product.rows = rows.count;
    product.in = rows.size;
    product.out = result.size(-1);
    return product;
}

void multiply(const Product& product, bool columns) {
    if (product.rows > few_rows(product.stored, columns))
        return product.stored == Stored::f32 ? multiply_floats(product, columns) : multiply_panels(product, columns);
    columns ? DLINFER_PICK(multiply_columns)(product) : DLINFER_PICK(multiply_rows)(product);
}

void bind_matmul(pybind11::module_& module) {
    using Free = pybind11::call_guard<pybind11::gil_scoped_release>;
    using pybind11::arg;
    const auto none = pybind11::none();
    module.def("linear", &linear_of, arg("x"), arg("weight"), arg("bias") = none, Free());
    module.def("weight_quant_matmul", &weight_quant_matmul_of, arg("x1"), arg("x2"), arg("scale"), arg("offset") = none, arg("bias") = none,
               arg("group_size") = 0, Free());
    module.def("linear_w8a8", &linear_w8a8_of, arg("a"), arg("b"), arg("rms_scale"), arg("linear_scale"), arg("out_dtype"), arg("quant_dtype"),
               arg("bias") = pybind11::none(), Free());
    module.def("linear_w8a8_static", &linear_w8a8_static_of, arg("x"), arg("weight"), arg("input_scale"), arg("input_offset"), arg("deq_scale"),
               arg("out_dtype"), arg("quant_dtype"), arg("quant_bias") = pybind11::none(), Free());
}

}  // namespace dlinfer
