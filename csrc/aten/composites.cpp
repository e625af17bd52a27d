#include "composites.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <diopi/functions_ext.h>
#include <torch/library.h>

#include <cmath>

#include "alias.h"
#include "fallback.h"
#include "wrapper.h"

namespace dipu {

at::Tensor convolution_fallback(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                 at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                                 at::IntArrayRef output_padding, int64_t groups) {
    static OpRecord& record = op_record("convolution");
    return fall_back<at::Tensor>(record, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward_fallback(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> output_mask) {
    static OpRecord& record = op_record("convolution_backward");
    const int64_t channels = grad_output.size(1);
    const at::OptionalIntArrayRef bias_sizes = output_mask[2] ? at::OptionalIntArrayRef(at::IntArrayRef(&channels, 1)) : std::nullopt;
    return fall_back<std::tuple<at::Tensor, at::Tensor, at::Tensor>>(record, grad_output, input, weight, bias_sizes, stride, padding, dilation,
                                                                     transposed, output_padding, groups, output_mask);
}

at::Tensor total_weight_of(const at::Tensor& input, const at::Tensor& target, const std::optional<at::Tensor>& weight, int64_t reduction,
                           int64_t ignore_index) {
    if (reduction == at::Reduction::None) return at::zeros({}, input.options());
    const at::Tensor counts = target.ne(ignore_index).flatten();
    if (!weight || !weight->defined()) return counts.sum(input.scalar_type());
    const at::Tensor classes = target.flatten().masked_fill(counts.logical_not(), 0);
    return (weight->index_select(0, classes) * counts).sum();
}

namespace {

using at::Tensor;

Tensor with_bias(const Tensor& gates, const std::optional<Tensor>& bias) { return bias && bias->defined() ? gates + *bias : gates; }

// ---- recurrent cells: torch fuses them on devices; here they are their definition ----

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const std::optional<Tensor>& input_bias, const std::optional<Tensor>& hidden_bias) {
    const Tensor gates = with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias);
    const auto parts = gates.chunk(4, 1);
    const Tensor in = at::sigmoid(parts[0]), forget = at::sigmoid(parts[1]), cell = at::tanh(parts[2]), out = at::sigmoid(parts[3]);
    Tensor cy = forget * cx + in * cell;
    Tensor hy = out * at::tanh(cy);
    return {hy, cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& grad_hy, const std::optional<Tensor>& grad_cy,
                                                      const Tensor& cx, const Tensor& cy, const Tensor& workspace, bool has_bias) {
    const bool has_hy = grad_hy && grad_hy->defined(), has_cy = grad_cy && grad_cy->defined();
    if (!has_hy && !has_cy) return {};
    const auto parts = workspace.chunk(4, 1);
    const Tensor &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
    const Tensor tanh_cy = at::tanh(cy);
    const Tensor dhy = has_hy ? *grad_hy : at::zeros_like(cx);
    Tensor dcy = dhy * out * (1 - tanh_cy * tanh_cy);
    if (has_cy) dcy = dcy + *grad_cy;
    const Tensor grad_gates = at::cat({dcy * cell * in * (1 - in), dcy * cx * forget * (1 - forget), dcy * in * (1 - cell * cell),
                                       dhy * tanh_cy * out * (1 - out)}, 1);
    return {grad_gates, dcy * forget, has_bias ? grad_gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const std::optional<Tensor>& input_bias, const std::optional<Tensor>& hidden_bias) {
    const auto from_input = with_bias(input_gates, input_bias).chunk(3, 1);
    const auto from_hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
    const Tensor reset = at::sigmoid(from_input[0] + from_hidden[0]), update = at::sigmoid(from_input[1] + from_hidden[1]);
    const Tensor fresh = at::tanh(from_input[2] + reset * from_hidden[2]);
    return {(hx - fresh) * update + fresh, at::cat({reset, update, fresh, hx, from_hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace, bool has_bias) {
    const auto parts = workspace.chunk(5, 1);
    const Tensor &reset = parts[0], &update = parts[1], &fresh = parts[2], &hx = parts[3], &hidden = parts[4];
    const Tensor grad_update = grad_hy * (hx - fresh) * update * (1 - update);
    const Tensor grad_fresh = grad_hy * (1 - update) * (1 - fresh * fresh);
    const Tensor grad_reset = grad_fresh * hidden * reset * (1 - reset);
    const Tensor grad_input = at::cat({grad_reset, grad_update, grad_fresh}, 1);
    const Tensor grad_hidden = at::cat({grad_reset, grad_update, grad_fresh * reset}, 1);
    return {grad_input, grad_hidden, grad_hy * update, has_bias ? grad_input.sum(0) : Tensor(), has_bias ? grad_hidden.sum(0) : Tensor()};
}

// ---- attention: by the vendor's function, or the CPU's fused kernel where running it over an alias is right for the chip, else torch's definition ----

using FlashAttention = decltype(&::diopiFlashAttention);
using FlashAttentionBackward = decltype(&::diopiFlashAttentionBackward);

Operator& flash_operator() {
    static Operator op("diopiFlashAttention", __LINE__);
    return op;
}
Operator& flash_operator_backward() {
    static Operator op("diopiFlashAttentionBackward", __LINE__);
    return op;
}

// Whether the vendor's function takes this: its causal mask stands in the other corner, and it knows no other mask.
bool flash_takes(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double dropout, bool causal) {
    if (!vendor().has(DIPU_FEATURE_FLASH_ATTENTION) || !flash_operator().function() || !flash_operator_backward().function()) return false;
    if (mask || dropout != 0 || query.dim() != 4 || query.numel() == 0 || key.numel() == 0) return false;
    for (const Tensor* one : {&query, &key, &value})
        if (!on_device(*one) || one->layout() != at::kStrided || one->is_nested() || one->dim() != 4 || one->stride(-1) != 1) return false;
    const auto type = query.scalar_type();
    if ((type != at::kHalf && type != at::kBFloat16) || key.scalar_type() != type || value.scalar_type() != type) return false;
    const int64_t width = query.size(3);
    return width % 8 == 0 && width <= 256 && value.size(3) == width && query.size(1) % key.size(1) == 0 && (!causal || query.size(2) == key.size(2));
}

float scale_or_usual(std::optional<double> scale, const Tensor& query) {
    return static_cast<float>(scale ? *scale : 1 / std::sqrt(static_cast<double>(query.size(3))));
}

// Lengths before heads, as the function has them.
Tensor by_length(const Tensor& tensor) { return tensor.transpose(1, 2); }
Tensor empty_by_length(const Tensor& like) {
    return empty_on(like.device().index(), {like.size(0), like.size(2), like.size(1), like.size(3)}, like.scalar_type());
}

std::tuple<Tensor, Tensor> flash_attention(const Tensor& query, const Tensor& key, const Tensor& value, bool causal, std::optional<double> scale) {
    static OpRecord& record = op_record("_scaled_dot_product_fused_attention_overrideable");
    Tensor out = empty_by_length(query);
    Tensor lse = empty_on(query.device().index(), {query.size(0), query.size(1), query.size(2)}, at::kFloat);
    const Tensor q = by_length(query), k = by_length(key), v = by_length(value);
    Call call(flash_operator(), record);
    TORCH_CHECK(call.accepts(kFp, q, k, v) && call.run<FlashAttention>(handle(out), handle(lse), nullptr, handle(q), handle(k), handle(v), nullptr, 0.0f,
                                                                       scale_or_usual(scale, query), causal, -1, -1),
                "dipu: the vendor offers flash attention, but refuses queries of shape ", query.sizes(), " and dtype ", query.scalar_type());
    return {by_length(out), lse};
}

std::tuple<Tensor, Tensor, Tensor> flash_attention_backward(const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
                                                            const Tensor& out, const Tensor& lse, bool causal, std::optional<double> scale) {
    static OpRecord& record = op_record("_scaled_dot_product_fused_attention_overrideable_backward");
    Tensor grad_q = empty_by_length(query), grad_k = empty_by_length(key), grad_v = empty_by_length(value);
    const Tensor g = by_length(grad_out), q = by_length(query), k = by_length(key), v = by_length(value), o = by_length(out);
    Call call(flash_operator_backward(), record);
    TORCH_CHECK(call.accepts(kFp, q, k, v, g, o, lse) &&
                    call.run<FlashAttentionBackward>(handle(grad_q), handle(grad_k), handle(grad_v), handle(g), nullptr, handle(q), handle(k), handle(v),
                                                     nullptr, handle(o), handle(lse), 0.0f, scale_or_usual(scale, query), causal, -1, -1),
                "dipu: the vendor offers flash attention, but refuses its backward form for queries of shape ", query.sizes());
    return {by_length(grad_q), by_length(grad_k), by_length(grad_v)};
}

int64_t attention_choice(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double dropout,
                         bool causal, std::optional<double> scale, bool grouped) {
    const auto math = static_cast<int64_t>(sdp::SDPBackend::math);
    // torch.compile traces with tensors that have no memory to alias; torch's own definition is traced then.
    if (query.key_set().has_any(c10::python_ks)) return math;
    if (flash_takes(query, key, value, mask, dropout, causal)) return static_cast<int64_t>(sdp::SDPBackend::overrideable);
    if (!vendor().has(DIPU_FEATURE_ALIAS_ATTENTION) || (mask && mask->requires_grad())) return math;
    if (query.layout() != at::kStrided || query.is_nested()) return math;
    std::optional<Tensor> cpu_mask = mask;
    if (mask && on_device(*mask)) cpu_mask = cpu_alias(*mask);
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const int64_t choice =
        at::_fused_sdp_choice(cpu_alias(query), cpu_alias(key), cpu_alias(value), cpu_mask, dropout, causal, scale, grouped);
    return choice == math ? math : static_cast<int64_t>(sdp::SDPBackend::overrideable);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& bias, double dropout, bool causal, bool,
    std::optional<double> scale) {
    if (flash_takes(query, key, value, bias, dropout, causal)) {
        auto [out, logsumexp] = flash_attention(query, key, value, causal, scale);
        return {out, logsumexp, Tensor(), Tensor(), query.size(2), key.size(2), Tensor(), Tensor(), Tensor()};
    }
    auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, bias, scale);
    return {out, logsumexp, Tensor(), Tensor(), query.size(2), key.size(2), Tensor(), Tensor(), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                                              const Tensor& value, const Tensor& bias, std::array<bool, 4>, const Tensor& out,
                                                              const Tensor& logsumexp, const Tensor&, const Tensor&, c10::SymInt, c10::SymInt,
                                                              double dropout, bool causal, const Tensor&, const Tensor&,
                                                              std::optional<double> scale) {
    if (!grad_out.defined()) return {};
    if (flash_takes(query, key, value, bias.defined() ? std::optional<Tensor>(bias) : std::nullopt, dropout, causal)) {
        auto [q, k, v] = flash_attention_backward(grad_out, query, key, value, out, logsumexp, causal, scale);
        return {q, k, v, Tensor()};
    }
    auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, query, key, value, out, logsumexp, dropout, causal, bias.defined() ? std::optional<Tensor>(bias) : std::nullopt, scale);
    return {q, k, v, Tensor()};
}

// ---- histc: of whole numbers too, as on devices where experts are counted with it; the CPU has floating point only ----

Tensor histc(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
    static OpRecord& record = op_record("histc");
    if (!at::isIntegralType(self.scalar_type(), false)) return fall_back<Tensor>(record, self, bins, min, max);
    return fall_back<Tensor>(record, self.to(at::kDouble), bins, min, max).to(self.scalar_type());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("histc", histc);
    m.impl("_thnn_fused_lstm_cell", lstm_cell);
    m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
    m.impl("_thnn_fused_gru_cell", gru_cell);
    m.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
    m.impl("_scaled_dot_product_fused_attention_overrideable", attention);
    m.impl("_scaled_dot_product_fused_attention_overrideable_backward", attention_backward);
}

}  // namespace
}  // namespace dipu

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &dipu::attention_choice)
}  // namespace at::native
