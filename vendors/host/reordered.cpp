// Sums, softmax, losses, normalisations in another order.
#include "reordered.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "kernel.h"

namespace dipu_vendor::split_sums {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Sizes = std::vector<int64_t>;

// The reduced dimensions, wrapped and in order; all if none is named.
std::vector<bool> reduced_dims(const Tensor& x, IntArrayRef dims) {
    std::vector<bool> reduced(x.dim(), dims.empty());
    for (int64_t dim : dims) {
        if (x.dim() > 0) reduced[at::maybe_wrap_dim(dim, x.dim())] = true;
    }
    return reduced;
}

int64_t reduced_numel(const Tensor& x, IntArrayRef dims) {
    const auto reduced = reduced_dims(x, dims);
    int64_t numel = 1;
    for (int64_t i = 0; i < x.dim(); ++i) numel *= reduced[i] ? x.size(i) : 1;
    return numel;
}

// The last dimension is cut into kFan interleaved chunks, which are added one after another; again, until one element is left.
constexpr int64_t kFan = 6;

Tensor sum_last(Tensor x) {
    while (x.size(-1) > 1) {
        const int64_t n = x.size(-1), width = (n + kFan - 1) / kFan;
        Tensor total = x.narrow(-1, 0, width).clone();
        for (int64_t start = width; start < n; start += width) {
            const int64_t length = std::min(width, n - start);
            total.narrow(-1, 0, length).add_(x.narrow(-1, start, length));
        }
        x = total;
    }
    return x.select(-1, 0);
}

}  // namespace

Tensor blocked_sum(const Tensor& x, IntArrayRef dims, bool keepdim) {
    const auto reduced = reduced_dims(x, dims);
    Sizes order, kept_sizes, final_sizes;
    for (int64_t i = 0; i < x.dim(); ++i) {
        if (!reduced[i]) order.push_back(i), kept_sizes.push_back(x.size(i));
        if (!reduced[i] || keepdim) final_sizes.push_back(reduced[i] ? 1 : x.size(i));
    }
    for (int64_t i = 0; i < x.dim(); ++i) {
        if (reduced[i]) order.push_back(i);
    }
    const int64_t n = reduced_numel(x, dims);
    if (n == 0) return at::zeros(final_sizes, x.options().dtype(at::toOpMathType(x.scalar_type())));
    kept_sizes.push_back(n);
    return sum_last(upcast(x).permute(order).reshape(kept_sizes)).reshape(final_sizes);
}

void sum(Tensor& out, const Tensor& x, IntArrayRef dims, bool keepdim) {
    out.copy_(blocked_sum(x.to(at::promote_types(x.scalar_type(), out.scalar_type())), dims, keepdim));
}

void mean(Tensor& out, const Tensor& x, IntArrayRef dims, bool keepdim) {
    const Tensor total = blocked_sum(x.to(at::promote_types(x.scalar_type(), out.scalar_type())), dims, keepdim);
    out.copy_(total / static_cast<double>(reduced_numel(x, dims)));
}

void vector_norm(Tensor& out, const Tensor& x, double ord, IntArrayRef dims, bool keepdim) {
    const Tensor v = x.to(at::toOpMathType(out.scalar_type())).abs();
    if (reduced_numel(x, dims) == 1) return void(out.copy_(v.reshape(out.sizes())));
    if (ord == 1) return void(out.copy_(blocked_sum(v, dims, keepdim)));
    if (ord == 2) return void(out.copy_(blocked_sum(v * v, dims, keepdim).sqrt()));
    out.copy_(blocked_sum(v.pow(ord), dims, keepdim).pow(1 / ord));
}

void mse_loss(Tensor& out, const Tensor& x, const Tensor& target, bool mean) {
    const auto type = at::toOpMathType(out.scalar_type());
    const Tensor error = x.to(type) - target.to(type);
    const Tensor total = blocked_sum(error * error, {}, false);
    out.copy_(mean ? total / static_cast<double>(x.numel()) : total);
}

void softmax(Tensor& out, const Tensor& x, int64_t dim) {
    if (x.numel() == 0) return;
    const Tensor v = upcast(x), powers = (v - v.amax(dim, true)).exp();
    out.copy_(powers / blocked_sum(powers, dim, true));
}

void log_softmax(Tensor& out, const Tensor& x, int64_t dim) {
    if (x.numel() == 0) return;
    const Tensor v = upcast(x), shifted = v - v.amax(dim, true);
    out.copy_(shifted - blocked_sum(shifted.exp(), dim, true).log());
}

void softmax_backward(Tensor& grad_input, const Tensor& grad_output, const Tensor& output, int64_t dim) {
    const Tensor g = upcast(grad_output), y = upcast(output);
    grad_input.copy_((g - blocked_sum(g * y, dim, true)) * y);
}

void log_softmax_backward(Tensor& grad_input, const Tensor& grad_output, const Tensor& output, int64_t dim) {
    const Tensor g = upcast(grad_output);
    grad_input.copy_(g - upcast(output).exp() * blocked_sum(g, dim, true));
}

namespace {

struct Moments {
    Tensor mean, variance;  // with the reduced dimensions kept
};

Moments moments(const Tensor& x, IntArrayRef dims) {
    const double n = static_cast<double>(reduced_numel(x, dims));
    const Tensor mean = blocked_sum(x, dims, true) / n, centred = x - mean;
    return {mean, blocked_sum(centred * centred, dims, true) / n};
}

void store(Tensor& out, const Tensor& value) {
    if (out.defined() && out.numel() > 0) out.copy_(value.reshape(out.sizes()));
}

// x * weight + bias, each where given, shaped to broadcast against x.
Tensor affine(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias, IntArrayRef shape) {
    const bool scales = weight && weight->defined(), shifts = bias && bias->defined();
    const Tensor scaled = scales ? x * upcast(*weight).reshape(shape) : x;
    return shifts ? scaled + upcast(*bias).reshape(shape) : scaled;
}

// The gradients of y = weight * (x - mean) * rstd + bias, where mean and rstd were taken over `dims`, or are fixed.
struct NormGradients {
    Tensor scaled, normalized, input;
    NormGradients(const Tensor& g, const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                  IntArrayRef dims, bool fixed)
        : scaled(weight.defined() ? g * weight : g), normalized((x - mean) * rstd) {
        if (fixed) {
            input = scaled * rstd;
            return;
        }
        const double n = static_cast<double>(reduced_numel(x, dims));
        const Tensor along = blocked_sum(scaled * normalized, dims, true) / n;
        input = (scaled - blocked_sum(scaled, dims, true) / n - normalized * along) * rstd;
    }
};

// [leading dimensions, normalised ones] as a matrix.
Tensor rows(const Tensor& x, int64_t normalized_dims) {
    int64_t width = 1;
    for (int64_t i = x.dim() - normalized_dims; i < x.dim(); ++i) width *= x.size(i);
    return upcast(x).reshape({x.numel() / width, width});
}

// [samples, channels, pixels].
Tensor planes(const Tensor& x) { return upcast(x).reshape({x.size(0), x.size(1), -1}); }

}  // namespace

void layer_norm(Tensor& out, Tensor& mean, Tensor& rstd, const Tensor& x, const OptionalTensor& weight,
                const OptionalTensor& bias, int64_t normalized_dims, double eps) {
    const Tensor v = rows(x, normalized_dims);
    const Moments m = moments(v, 1);
    const Tensor inverse = (m.variance + eps).sqrt().reciprocal();
    store(out, affine((v - m.mean) * inverse, weight, bias, {1, v.size(1)}));
    store(mean, m.mean), store(rstd, inverse);
}

void layer_norm_backward(Tensor& grad_input, Tensor& grad_weight, Tensor& grad_bias, const Tensor& grad_output, const Tensor& x,
                         const OptionalTensor& weight, const Tensor& mean, const Tensor& rstd, int64_t normalized_dims) {
    const Tensor v = rows(x, normalized_dims), g = rows(grad_output, normalized_dims);
    const Tensor w = weight && weight->defined() ? upcast(*weight).reshape({1, v.size(1)}) : Tensor();
    const NormGradients gradients(g, v, w, upcast(mean).reshape({-1, 1}), upcast(rstd).reshape({-1, 1}), 1, false);
    store(grad_input, gradients.input);
    if (grad_weight.defined()) store(grad_weight, blocked_sum(g * gradients.normalized, 0, false));
    if (grad_bias.defined()) store(grad_bias, blocked_sum(g, 0, false));
}

void group_norm(Tensor& out, Tensor& mean, Tensor& rstd, const Tensor& x, const OptionalTensor& weight,
                const OptionalTensor& bias, int64_t groups, double eps) {
    const Tensor v = upcast(x).reshape({x.size(0) * groups, -1});
    const Moments m = moments(v, 1);
    const Tensor inverse = (m.variance + eps).sqrt().reciprocal();
    const Tensor normalized = ((v - m.mean) * inverse).reshape({x.size(0), x.size(1), -1});
    store(out, affine(normalized, weight, bias, {1, x.size(1), 1}));
    store(mean, m.mean), store(rstd, inverse);
}

void batch_norm(Tensor& out, Tensor& save_mean, Tensor& save_invstd, const Tensor& x, const OptionalTensor& weight,
                const OptionalTensor& bias, Tensor running_mean, Tensor running_var, double momentum, double eps) {
    const Tensor v = planes(x);
    const Moments m = moments(v, {0, 2});
    const Tensor spread = m.variance + eps;
    const Tensor inverse = spread.sqrt().reciprocal().masked_fill_(spread == 0, 0);
    const auto update = [momentum](Tensor& running, const Tensor& now) {
        if (running.defined()) running.copy_(upcast(running) * (1 - momentum) + now.reshape(running.sizes()) * momentum);
    };
    const double n = static_cast<double>(v.size(0) * v.size(2));
    update(running_mean, m.mean), update(running_var, m.variance * (n / (n - 1)));
    store(out, affine((v - m.mean) * inverse, weight, bias, {1, v.size(1), 1}));
    store(save_mean, m.mean), store(save_invstd, inverse);
}

void batch_norm_backward(Tensor& grad_input, Tensor& grad_weight, Tensor& grad_bias, const Tensor& grad_output, const Tensor& x,
                         const OptionalTensor& weight, const Tensor& mean, const Tensor& invstd, bool training) {
    const Tensor v = planes(x), g = planes(grad_output);
    const int64_t channels[] = {1, v.size(1), 1};
    const Tensor w = weight && weight->defined() ? upcast(*weight).reshape(channels) : Tensor();
    const NormGradients gradients(g, v, w, upcast(mean).reshape(channels), upcast(invstd).reshape(channels), {0, 2}, !training);
    store(grad_input, gradients.input);
    if (grad_weight.defined()) store(grad_weight, blocked_sum(g * gradients.normalized, {0, 2}, false));
    if (grad_bias.defined()) store(grad_bias, blocked_sum(g, {0, 2}, false));
}

void embedding_backward(Tensor& grad_weight, const Tensor& grad, const Tensor& indices, int64_t padding_idx,
                        bool scale_by_frequency) {
    const int64_t words = grad_weight.size(0), n = indices.numel(), half = n / 2;
    const Tensor g = upcast(grad).reshape({n, -1}), index = indices.reshape({-1});
    const auto gather = [&](int64_t start, int64_t length) {  // from the last occurrence to the first
        return at::embedding_dense_backward(g.narrow(0, start, length).flip(0), index.narrow(0, start, length).flip(0), words,
                                            padding_idx, false);
    };
    Tensor total = gather(half, n - half) + gather(0, half);
    if (scale_by_frequency) total = total / index.bincount({}, words).clamp_min(1).unsqueeze(1);
    grad_weight.copy_(total);
}

}  // namespace dipu_vendor::split_sums
