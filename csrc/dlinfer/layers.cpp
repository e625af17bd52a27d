// Norms and activations.
#include <torch/csrc/utils/pybind.h>

#include <tuple>

#include "arguments.h"
#include "bindings.h"
#include "kernels/activation.h"
#include "kernels/rotary.h"
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
          dtype_of(hidden.scalar_type()), weight.scalar_type() == at::kFloat, static_cast<float>(epsilon)});
    }
};

/// Rows without elements have scales too (of nothing): the reference knows them.
bool quantises(const Tensor& rows, at::ScalarType quant_dtype) {
    return has_dtype(rows.scalar_type()) && quant_dtype == at::kChar && rows.numel();
}

Tensor rms_norm_of(const Tensor& hidden_states, const Tensor& weight, double epsilon) {
    if (!has_dtype(hidden_states.scalar_type())) return reference<Tensor>("rms_norm", hidden_states, weight, epsilon);
    const NormCall call(hidden_states, nullptr, weight, false);
    call.run(epsilon);
    return call.result;
}

Two add_rms_norm_of(const Tensor& hidden_states, const Tensor& residual, const Tensor& weight, double epsilon) {
    if (!has_dtype(hidden_states.scalar_type())) return reference<Two>("add_rms_norm", hidden_states, residual, weight, epsilon);
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
      dtype_of(rows.scalar_type()), whole});
    return {quantised, scales};
}

Tensor silu_and_mul_of(const Tensor& input_tensor, int64_t dim) {
    if (!has_dtype(input_tensor.scalar_type())) return reference<Tensor>("silu_and_mul", input_tensor, dim);
    const Tensor input = input_tensor.contiguous();
    at::DimVector shape(input.sizes());
    auto& half = shape[static_cast<size_t>(dim < 0 ? dim + input.dim() : dim)];
    half /= 2;
    const Tensor result = at::empty(shape, input.options());
    if (!result.numel()) return result;
    const int64_t size = half * input.stride(dim);
    const Dtype dtype = dtype_of(input.scalar_type());
    DLINFER_PICK(silu_and_mul)({readable(input), writable(result), result.numel() / size, size, dtype, dtype});
    return result;
}

// ---- rotary position embedding ----

using Two = std::tuple<Tensor, Tensor>;

/// Both tables in one dtype that kernels know, dense.
struct Tables {
    Tensor cosines, sines;

    Tables(const Tensor& cos, const Tensor& sin) {
        const bool same = cos.scalar_type() == sin.scalar_type() && has_dtype(cos.scalar_type());
        cosines = (same ? cos : cos.to(at::kFloat)).contiguous();
        sines = (same ? sin : sin.to(at::kFloat)).contiguous();
    }
};

/// Tokens are all dimensions in front of the last `behind` ones; of those the last is a head.
Tensor rotated(const Tensor& given, const Tables& tables, int64_t behind, Rotation::Pairs pairs) {
    const int64_t front = given.dim() - behind;
    // Views of up to two dimensions of tokens and one of heads are read as they lie.
    const auto states = has_dense_rows(given) && front <= 2 && behind <= 2 ? given : given.contiguous();
    auto result = at::empty(given.sizes(), given.options());
    Rotation call{};
    call.dtype = dtype_of(states.scalar_type());
    call.outer = front == 2 ? states.size(0) : 1, call.outer_stride = front == 2 ? states.stride(0) : 0;
    call.inner = front == 2 ? states.size(1) : c10::multiply_integers(states.sizes().slice(0, static_cast<size_t>(front)));
    call.size = states.size(-1);
    call.rotary = tables.cosines.size(-1);
    if (!states.numel()) return result;
    call.heads = states.numel() / (call.outer * call.inner * call.size);
    call.inner_stride = front <= 2 ? states.stride(front - 1) : call.heads * call.size;
    call.head_stride = behind == 2 ? states.stride(-2) : call.size;
    call.states = readable(states);
    call.result = writable(result);
    call.cosines = readable(tables.cosines);
    call.sines = readable(tables.sines);
    call.table = dtype_of(tables.cosines.scalar_type());
    call.pairs = pairs;
    DLINFER_PICK(rotate)(call);
    return result;
}

Two apply_rotary_pos_emb(const Tensor& query, const Tensor& key, const Tensor& cos, const Tensor& sin) {
    if (!has_dtype(query.scalar_type())) return reference<Two>("apply_rotary_pos_emb", query, key, cos, sin);
    const Tables tables(cos, sin);
    return {rotated(query, tables, 2, Rotation::Pairs::halves), rotated(key, tables, 2, Rotation::Pairs::halves)};
}

Tensor apply_rotary_pos_emb_interleaved(const Tensor& states, const Tensor& cos, const Tensor& sin, bool native_layout) {
    if (!has_dtype(states.scalar_type())) return reference<Tensor>("apply_rotary_pos_emb_interleaved", states, cos, sin, native_layout);
    return rotated(states, {cos, sin}, states.dim() - 1, native_layout ? Rotation::Pairs::adjacent_to_halves : Rotation::Pairs::adjacent);
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
    module.def("apply_rotary_pos_emb", &apply_rotary_pos_emb, arg("query"), arg("key"), arg("cos"), arg("sin"));
    module.def("apply_rotary_pos_emb_interleaved", &apply_rotary_pos_emb_interleaved, arg("states"), arg("cos"), arg("sin"),
               arg("native_layout") = true);
}

}  // namespace dlinfer
