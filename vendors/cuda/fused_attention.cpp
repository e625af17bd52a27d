// Attention of whole batches by torch's fused kernels: which one, torch chooses as it does for torch.cuda.
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/SDPBackend.h>

#include "attention.h"

namespace dipu_vendor {
namespace {

using at::Tensor;
using Backend = at::SDPBackend;

constexpr int64_t kLargestHead = 256;

// Heads before lengths, as torch's functions have them.
Tensor swapped(const Tensor& tensor) { return tensor.transpose(1, 2); }

// Flash attention or cuDNN's, if one of them takes these operands; else math.
Backend choice(const Tensor& q, const Tensor& k, const Tensor& v, const Maybes& slopes, const Scoring& scoring) {
    const bool half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
    const bool plain = !slopes && scoring.dropout == 0 && scoring.left < 0 && (scoring.right < 0 || (scoring.causal && scoring.right <= 0));
    if (!half || !plain || q.dim() != 4 || q.numel() == 0 || k.numel() == 0) return Backend::math;
    if (q.scalar_type() != k.scalar_type() || q.scalar_type() != v.scalar_type() || q.size(3) != v.size(3)) return Backend::math;
    if (scoring.causal && q.size(1) != k.size(1)) return Backend::math;  // torch's corner is another one
    if (q.size(3) % 8 != 0 || q.size(3) > kLargestHead) return Backend::math;
    const auto chosen = static_cast<Backend>(at::_fused_sdp_choice(swapped(q), swapped(k), swapped(v), std::nullopt, 0.0, scoring.causal,
                                                                   scoring.scale, /*enable_gqa=*/q.size(2) != k.size(2)));
    if (chosen == Backend::cudnn_attention || chosen == Backend::flash_attention) return chosen;
    return Backend::math;
}

}  // namespace

bool attend_fused(Tensor& out, const Maybes& lse, const Tensor& q, const Tensor& k, const Tensor& v, const Maybes& slopes,
                  const Scoring& scoring) {
    const Backend backend = choice(q, k, v, slopes, scoring);
    Tensor made, logarithms;
    if (backend == Backend::cudnn_attention) {
        auto done = at::_scaled_dot_product_cudnn_attention(swapped(q), swapped(k), swapped(v), std::nullopt, /*compute_log_sumexp=*/true, 0.0,
                                                            scoring.causal, /*return_debug_mask=*/false, scoring.scale);
        made = std::get<0>(done), logarithms = std::get<1>(done);
    } else if (backend == Backend::flash_attention) {
        auto done = at::_scaled_dot_product_flash_attention(swapped(q), swapped(k), swapped(v), 0.0, scoring.causal,
                                                            /*return_debug_mask=*/false, scoring.scale);
        made = std::get<0>(done), logarithms = std::get<1>(done);
    } else {
        return false;
    }
    write(out, swapped(made), "attention_out");
    if (lse) write(*lse, logarithms.view({q.size(0), q.size(2), q.size(1)}), "softmax_lse");
    return true;
}

std::optional<Gradients> attend_fused_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Maybes& slopes,
                                               const Tensor& out, const Tensor& lse, const Scoring& scoring) {
    const Backend backend = choice(q, k, v, slopes, scoring);
    if (backend != Backend::cudnn_attention && backend != Backend::flash_attention) return std::nullopt;
    if (grad.sizes() != q.sizes() || out.sizes() != q.sizes() || lse.numel() != q.size(0) * q.size(1) * q.size(2)) return std::nullopt;
    const Tensor logarithms = lse.to(at::kFloat).contiguous();
    const Tensor unused = at::empty({2}, q.options().dtype(at::kLong));  // of dropout: seed and offset
    Tensor dq, dk, dv;
    if (backend == Backend::cudnn_attention) {
        const auto shaped = logarithms.view({q.size(0), q.size(2), q.size(1), 1});
        std::tie(dq, dk, dv) = at::_scaled_dot_product_cudnn_attention_backward(swapped(grad), swapped(q), swapped(k), swapped(v), swapped(out), shaped,
                                                                               unused, unused, Tensor(), Tensor(), Tensor(), q.size(1), k.size(1), 0.0,
                                                                               scoring.causal, scoring.scale);
    } else {
        const auto shaped = logarithms.view({q.size(0), q.size(2), q.size(1)});
        std::tie(dq, dk, dv) = at::_scaled_dot_product_flash_attention_backward(swapped(grad), swapped(q), swapped(k), swapped(v), swapped(out), shaped,
                                                                               Tensor(), Tensor(), q.size(1), k.size(1), 0.0, scoring.causal, unused,
                                                                               unused, scoring.scale);
    }
    return Gradients{swapped(dq), swapped(dk), swapped(dv)};
}

}  // namespace dipu_vendor
