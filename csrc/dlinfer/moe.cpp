// Mixtures of experts.
#include "kernels/moe.h"

#include <tuple>
#include <vector>

#include "bindings.h"
#include "kernels/activation.h"
#include "kernels/norms.h"
#include "matmul.h"

namespace dlinfer {
namespace {

using at::Tensor;
using Two = std::tuple<Tensor, Tensor>;

Two gating_of(const Tensor& router_logits, int64_t topk, int64_t n_groups, bool renormalize) {
    if (!has_dtype(router_logits.scalar_type()))
        return reference<Two>("moe_gating_topk_softmax", router_logits, topk, n_groups, renormalize);
    const Tensor logits = router_logits.contiguous();
    const Tensor weights = result_like(logits, topk, at::kFloat), ids = result_like(logits, topk, at::kLong);
    const int64_t experts = logits.size(-1);
    if (logits.numel())
        DLINFER_PICK(choose_experts)
    ({readable(logits), dtype_of(logits.scalar_type()), logits.numel() / experts, experts, topk, n_groups > 0 ? n_groups : 1, renormalize,
      writable<float>(weights), writable<int64_t>(ids)});
    return {weights, ids};
}

/// Numbers of experts, dense and int64, none of which is out of range. Asked in front of every fallback: the reference does not look.
Tensor checked_ids(const char* name, const Tensor& topk_ids, int64_t total) {
    const Tensor ids = topk_ids.to(at::kLong).contiguous();
    const auto* numbers = readable<int64_t>(ids);
    for (int64_t i = 0; i < ids.numel(); i++)
        if (numbers[i] < 0 || numbers[i] >= total)
            throw ArgumentError(name, "topk_ids",
                                "holds " + std::to_string(numbers[i]) + ", expected 0 to " + std::to_string(total - 1) + ", an expert's number");
    return ids;
}

/// Which tokens an expert has, and with which shares; tokens in order, experts in order.
struct Routing {
    std::vector<int64_t> tokens, starts;  // tokens of expert e: starts[e] to starts[e + 1]
    std::vector<float> shares;

    Routing(const Tensor& topk_weights, const Tensor& ids, bool renormalize, int64_t first, int64_t here)
        : starts(static_cast<size_t>(here) + 1) {
        const Floats weights(topk_weights);
        const auto* numbers = readable<int64_t>(ids);
        const int64_t topk = ids.size(1), count = ids.numel();
        for (int64_t i = 0; i < count; i++) {
            const int64_t local = numbers[i] - first;
            if (local >= 0 && local < here) starts[static_cast<size_t>(local) + 1]++;
        }
        for (size_t e = 1; e < starts.size(); e++) starts[e] += starts[e - 1];
        tokens.resize(static_cast<size_t>(starts.back()));
        shares.resize(tokens.size());
        auto next = starts;
        for (int64_t i = 0; i < count; i++) {
            const int64_t local = numbers[i] - first;
            if (local < 0 || local >= here) continue;
            const auto index = static_cast<size_t>(next[static_cast<size_t>(local)]++);
            const int64_t token = i / topk;
            tokens[index] = token;
            shares[index] = weights.data[i] / (renormalize ? sum(weights.data + token * topk, topk) : 1.0f);
        }
    }

    static float sum(const float* row, int64_t count) {
        float all = 0;
        for (int64_t i = 0; i < count; i++) all += row[i];
        return all;
    }
};

Tensor on_cpu(int64_t rows, int64_t size, at::ScalarType type) { return at::empty({rows, size}, at::TensorOptions(type)); }

/// Rows of some tokens, one after the other.
template <typename Element>
void gather(const Element* rows, int64_t size, const int64_t* tokens, int64_t count, Element* to) {
    for (int64_t i = 0; i < count; i++) std::memcpy(to + i * size, rows + tokens[i] * size, sizeof(Element) * static_cast<size_t>(size));
}

/// Goes through the experts: expert(number, tokens, count) gives their results in float [count, hidden].
template <typename Expert>
Tensor combined(const Tensor& hidden, const Routing& routing, const Expert& expert) {
    const auto sums = at::zeros(hidden.sizes(), at::TensorOptions(at::kFloat));
    const Tensor result = at::empty(hidden.sizes(), hidden.options());
    for (size_t e = 0; e + 1 < routing.starts.size(); e++) {
        const int64_t start = routing.starts[e], count = routing.starts[e + 1] - start;
        if (!count) continue;
        const int64_t* tokens = routing.tokens.data() + start;
        const Tensor rows = expert(static_cast<int64_t>(e), tokens, count);
        DLINFER_PICK(add_shares)
        ({sums.mutable_data_ptr<float>(), rows.const_data_ptr<float>(), tokens, routing.shares.data() + start, count, hidden.size(1)});
    }
    DLINFER_PICK(narrow_numbers)(sums.const_data_ptr<float>(), sums.numel(), dtype_of(hidden.scalar_type()), writable(result));
    return result;
}

/// silu_and_mul of floats, rounded to a dtype.
Tensor gated(const Tensor& inner, at::ScalarType type) {
    const int64_t size = inner.size(1) / 2;
    const Tensor result = on_cpu(inner.size(0), size, type);
    DLINFER_PICK(silu_and_mul)({inner.const_data_ptr(), result.mutable_data_ptr(), inner.size(0), size, Dtype::f32, dtype_of(type)});
    return result;
}

Tensor fused_moe_of(const Tensor& hidden_states, const Tensor& gate_up_weights, const Tensor& down_weights, const Tensor& topk_weights,
                    const Tensor& topk_ids, bool renormalize, int64_t first_expert, int64_t num_experts) {
    const int64_t here = gate_up_weights.size(0);
    const Tensor ids = checked_ids("fused_moe", topk_ids, num_experts ? num_experts : here);
    const auto type = hidden_states.scalar_type();
    if (!has_dtype(type) || !hidden_states.numel() || !down_weights.numel() || !topk_ids.numel())
        return reference<Tensor>("fused_moe", hidden_states, gate_up_weights, down_weights, topk_weights, topk_ids, renormalize, first_expert,
                                 num_experts);
    const Routing routing(topk_weights, ids, renormalize, first_expert, here);
    const Tensor hidden = hidden_states.contiguous();
    const auto linear = [&](const Tensor& x, const Tensor& weight) {
        const Weight laid(weight);
        const Tensor result = on_cpu(x.size(0), weight.size(0), at::kFloat);
        multiply(product_of(Rows(x), laid, stored_as(type), result), laid.columns);
        return result;
    };
    return combined(hidden, routing, [&](int64_t number, const int64_t* tokens, int64_t count) {
        const Tensor rows = on_cpu(count, hidden.size(1), type);
        const int64_t size = hidden.size(1) * static_cast<int64_t>(hidden.element_size());
        gather(readable<char>(hidden), size, tokens, count, static_cast<char*>(rows.mutable_data_ptr()));
        return linear(gated(linear(rows, gate_up_weights[number]), type), down_weights[number]);
    });
}

struct Quantised {
    Tensor numbers, scales;

    /// A scale for each row.
    explicit Quantised(const Tensor& x)
        : numbers(on_cpu(x.size(0), x.size(1), at::kChar)), scales(at::empty({x.size(0)}, at::TensorOptions(at::kFloat))) {
        DLINFER_PICK(quantise_rows)
        ({readable(x), numbers.mutable_data_ptr<int8_t>(), scales.mutable_data_ptr<float>(), x.size(0), x.size(1),
          dtype_of(x.scalar_type()), false});
    }
    Quantised(const Quantised& all, const int64_t* tokens, int64_t count)
        : numbers(on_cpu(count, all.numbers.size(1), at::kChar)), scales(at::empty({count}, at::TensorOptions(at::kFloat))) {
        gather(all.numbers.const_data_ptr<int8_t>(), numbers.size(1), tokens, count, numbers.mutable_data_ptr<int8_t>());
        gather(all.scales.const_data_ptr<float>(), 1, tokens, count, scales.mutable_data_ptr<float>());
    }
};

Tensor linear_of(const Quantised& x, const Tensor& weight, const Floats& scales, int64_t number) {
    const Tensor dense = dense_rows(weight), result = on_cpu(x.numbers.size(0), weight.size(0), at::kFloat);
    auto product = integer_product(Rows(x.numbers), dense, result);
    product.row_scale = x.scales.const_data_ptr<float>();
    product.column_scale = scales.data + number * weight.size(0);
    product.row_scales = product.column_scales = true;
    DLINFER_PICK(multiply_integers)(product);
    return result;
}

Tensor fused_moe_w8a8_of(const Tensor& hidden_states, const Tensor& gate_up_weights, const Tensor& gate_up_scales, const Tensor& down_weights,
                         const Tensor& down_scales, const Tensor& topk_weights, const Tensor& topk_ids, bool renormalize, int64_t first_expert,
                         int64_t num_experts) {
    const int64_t here = gate_up_weights.size(0);
    const Tensor ids = checked_ids("fused_moe_w8a8", topk_ids, num_experts ? num_experts : here);
    const auto type = hidden_states.scalar_type();
    const bool fits = gate_up_weights.size(2) <= MOST_INTEGERS && down_weights.size(2) <= MOST_INTEGERS;
    if (!has_dtype(type) || !fits || !hidden_states.numel() || !down_weights.numel() || !topk_ids.numel())
        return reference<Tensor>("fused_moe_w8a8", hidden_states, gate_up_weights, gate_up_scales, down_weights, down_scales, topk_weights, topk_ids,
                                 renormalize, first_expert, num_experts);
    const Routing routing(topk_weights, ids, renormalize, first_expert, here);
    const Tensor hidden = hidden_states.contiguous();
    const Floats first(gate_up_scales), second(down_scales);
    const Quantised all(hidden);
    return combined(hidden, routing, [&](int64_t number, const int64_t* tokens, int64_t count) {
        const Tensor inner = linear_of(Quantised(all, tokens, count), gate_up_weights[number], first, number);
        return linear_of(Quantised(gated(inner, type)), down_weights[number], second, number);
    });
}

}  // namespace

void bind_moe(pybind11::module_& module) {
    using Free = pybind11::call_guard<pybind11::gil_scoped_release>;
    using pybind11::arg;
    module.def("moe_gating_topk_softmax", &gating_of, arg("router_logits"), arg("topk"), arg("n_groups") = -1, arg("renormalize") = false, Free());
    module.def("fused_moe", &fused_moe_of, arg("hidden_states"), arg("gate_up_weights"), arg("down_weights"), arg("topk_weights"), arg("topk_ids"),
               arg("renormalize") = false, arg("first_expert") = 0, arg("num_experts") = 0, Free());
    module.def("fused_moe_w8a8", &fused_moe_w8a8_of, arg("hidden_states"), arg("gate_up_weights"), arg("gate_up_scales"), arg("down_weights"),
               arg("down_scales"), arg("topk_weights"), arg("topk_ids"), arg("renormalize") = false, arg("first_expert") = 0,
               arg("num_experts") = 0, Free());
}

}  // namespace dlinfer
