// Norms and activations.
#include <torch/csrc/utils/pybind.h>

#include <tuple>

#include "arguments.h"
#include "bindings.h"
#include "forms.h"
#include "kernels/activation.h"
#include "kernels/norms.h"

namespace dlinfer {
namespace {

using at::Tensor;
using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

/// A call of one of the four norms: what it reads, and which results it wants.
struct NormCall {
    Tensor hidden, residual, weight, sum, result, quantised, scales;

    NormCall(const Tensor& hidden_states, const Tensor* other, const Tensor& factors, bool quantise)
        : hidden(hidden_states.contiguous()),
          weight(factors.scalar_type() == hidden.scalar_type() ? factors.contiguous() : factors.to(at::kFloat).contiguous()) {
        if (other) {
            residual = other->contiguous();
            sum = at::empty_like(hidden);
        }
        if (quantise) {
            quantised = at::empty_like(hidden, hidden.options().dtype(at::kChar));
            scales = at::empty(hidden.sizes().slice(0, hidden.dim() - 1), hidden.options().dtype(at::kFloat));
        } else {
            result = at::empty_like(hidden);
        }
    }

    void run(double epsilon) const {
        const int64_t size = hidden.size(-1);
        if (!hidden.numel()) return;
        DLINFER_PICK(rms_norm)
        ({readable(hidden), residual.defined() ? readable(residual) : nullptr, readable(weight),
          sum.defined() ? writable(sum) : nullptr, result.defined() ? writable(result) : nullptr,
          quantised.defined() ? writable<int8_t>(quantised) : nullptr, scales.defined() ? writable<float>(scales) : nullptr,
          hidden.numel() / size, size,
          kind_of(hidden.scalar_type()), weight.scalar_type() == at::kFloat, static_cast<float>(epsilon)});
    }
};

/// Rows without elements have scales too (of nothing): the reference knows them.
bool quantises(const Tensor& rows, at::ScalarType quant_dtype) {
    return has_kind(rows.scalar_type()) && quant_dtype == at::kChar && rows.numel();
}

Tensor rms_norm_of(const Tensor& hidden_states, const Tensor& weight, double epsilon) {
    if (!has_kind(hidden_states.scalar_type())) return reference<Tensor>("rms_norm", hidden_states, weight, epsilon);
    const NormCall call(hidden_states, nullptr, weight, false);
    call.run(epsilon);
    return call.result;
}

Two add_rms_norm_of(const Tensor& hidden_states, const Tensor& residual, const Tensor& weight, double epsilon) {
    if (!has_kind(hidden_states.scalar_type())) return reference<Two>("add_rms_norm", hidden_states, residual, weight, epsilon);
    const NormCall call(hidden_states, &residual, weight, false);
    call.run(epsilon);
    return {call.result, call.sum};
}

Two rms_norm_w8a8_of(const Tensor& hidden_states, const Tensor& weight, double epsilon, at::ScalarType quant_dtype) {
    if (!quantises(hidden_states, quant_dtype))
        return reference<Two>("rms_norm_w8a8", hidden_states, weight, epsilon, quant_dtype);
    const NormCall call(hidden_states, nullptr, weight, true);
    call.run(epsilon);
    return {call.quantised, call.scales};
}

Three add_rms_norm_w8a8_of(const Tensor& hidden_states, const Tensor& residual, const Tensor& weight, double epsilon,
                           at::ScalarType quant_dtype) {
    if (!quantises(hidden_states, quant_dtype))
        return reference<Three>("add_rms_norm_w8a8", hidden_states, residual, weight, epsilon, quant_dtype);
    const NormCall call(hidden_states, &residual, weight, true);
    call.run(epsilon);
    return {call.quantised, call.scales, call.sum};
}

Two dynamic_quant_of(const Tensor& x, at::ScalarType quant_dtype, const std::string& quant_granularity) {
    if (!quantises(x, quant_dtype)) return reference<Two>("dynamic_quant", x, quant_dtype, quant_granularity);
    const bool whole = quant_granularity == "PER_TENSOR";
    const Tensor rows = x.contiguous(), quantised = at::empty_like(rows, rows.options().dtype(at::kChar));
    const Tensor scales = at::empty(whole ? at::IntArrayRef{1} : rows.sizes().slice(0, rows.dim() - 1), rows.options().dtype(at::kFloat));
    const int64_t size = rows.size(-1);
    DLINFER_PICK(quantise_rows)
    ({readable(rows), writable<int8_t>(quantised), writable<float>(scales), rows.numel() / size, size,
      kind_of(rows.scalar_type()), whole});
    return {quantised, scales};
}

Tensor silu_and_mul_of(const Tensor& input_tensor, int64_t dim) {
    if (!has_kind(input_tensor.scalar_type())) return reference<Tensor>("silu_and_mul", input_tensor, dim);
    const Tensor input = input_tensor.contiguous();
    at::DimVector shape(input.sizes());
    auto& half = shape[static_cast<size_t>(dim < 0 ? dim + input.dim() : dim)];
    half /= 2;
    const Tensor result = at::empty(shape, input.options());
    if (!result.numel()) return result;
    const int64_t size = half * input.stride(dim);
    const Kind kind = kind_of(input.scalar_type());
    DLINFER_PICK(silu_and_mul)({readable(input), writable(result), result.numel() / size, size, kind, kind});
    return result;
}

}  // namespace

void bind_layers(pybind11::module_& module) {
    using Free = pybind11::call_guard<pybind11::gil_scoped_release>;
    module.def("rms_norm", &rms_norm_of, Free());
    module.def("add_rms_norm", &add_rms_norm_of, Free());
    module.def("rms_norm_w8a8", &rms_norm_w8a8_of, Free());
    module.def("add_rms_norm_w8a8", &add_rms_norm_w8a8_of, Free());
    using pybind11::arg;
    module.def("dynamic_quant", &dynamic_quant_of, arg("x"), arg("quant_dtype"), arg("quant_granularity") = "PER_TOKEN", Free());
    module.def("silu_and_mul", &silu_and_mul_of, arg("input_tensor"), arg("dim") = -1, Free());
}

}  // namespace dlinfer
