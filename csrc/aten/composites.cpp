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
#include <torch/library.h>

#include "alias.h"
#include "fallback.h"

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

// ---- attention: the CPU's fused kernel where running it over an alias is right for the chip, else torch's definition ----

int64_t attention_choice(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double dropout,
                         bool causal, std::optional<double> scale, bool grouped) {
    const auto math = static_cast<int64_t>(sdp::SDPBackend::math);
    // torch.compile traces with tensors that have no memory to alias; torch's own definition is traced then.
    if (query.key_set().has_any(c10::python_ks)) return math;
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
    auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, bias, scale);
    return {out, logsumexp, Tensor(), Tensor(), query.size(2), key.size(2), Tensor(), Tensor(), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                                              const Tensor& value, const Tensor& bias, std::array<bool, 4>, const Tensor& out,
                                                              const Tensor& logsumexp, const Tensor&, const Tensor&, c10::SymInt, c10::SymInt,
                                                              double dropout, bool causal, const Tensor&, const Tensor&,
                                                              std::optional<double> scale) {
    if (!grad_out.defined()) return {};
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
