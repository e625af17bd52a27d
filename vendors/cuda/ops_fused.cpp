// Fused operators of language models, as compositions of ATen's kernels: rotary embedding, RMS normalisation, masked softmax, a product with its
// reduction over ranks.
#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>

#include <limits>

#include "attention.h"

using namespace dipu_vendor;
using at::Tensor;

namespace {

// ---- rotary embedding ----

// Pairs (a, b) turned by an angle: (a cos - b sin, b cos + a sin).
Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, bool conj, bool interleaved) {
    TORCH_CHECK(x.dim() > 0 && x.size(-1) % 2 == 0, "rotary embedding turns pairs, but x has the shape ", x.sizes());
    const int64_t half = x.size(-1) / 2;
    TORCH_CHECK(cos.dim() > 0 && sin.dim() > 0 && cos.size(-1) == half && sin.size(-1) == half, "cos and sin must have ", half,
                " numbers for a width of ", x.size(-1), ", but have the shapes ", cos.sizes(), " and ", sin.sizes());
    const Tensor values = accumulated(x);
    const Tensor c = cos.to(values.scalar_type()), s = conj ? -sin.to(values.scalar_type()) : sin.to(values.scalar_type());
    const auto pairs = interleaved ? values.unflatten(-1, {half, 2}) : values.unflatten(-1, {2, half}).transpose(-1, -2);
    const Tensor a = pairs.select(-1, 0), b = pairs.select(-1, 1);
    const Tensor first = a * c - b * s, second = b * c + a * s;
    return interleaved ? at::stack({first, second}, -1).flatten(-2) : at::cat({first, second}, -1);
}

// Heads of width `dim` for each token, in place; the second half of a head may have angles of its own.
void rotate_heads(Tensor& x, const Tensor& cos, const Tensor& sin, int64_t dim) {
    TORCH_CHECK(dim > 0 && dim % 2 == 0, "a head cannot have the width ", dim, "; it must be positive and even");
    TORCH_CHECK(cos.numel() == sin.numel() && cos.numel() % dim == 0, "cos ", cos.sizes(), " and sin ", sin.sizes(), " must hold ", dim,
                " numbers for each token");
    const int64_t tokens = cos.numel() / dim;
    const bool by_token = x.dim() >= 2 && (x.size(0) == tokens || (x.dim() >= 3 && x.size(0) * x.size(1) == tokens));
    TORCH_CHECK(by_token && x.size(-1) % dim == 0, "a tensor of shape ", x.sizes(), " does not consist of ", tokens, " tokens with heads of ",
                dim);
    if (x.numel() == 0) return;
    const Tensor heads = accumulated(x).view({tokens, -1, dim});
    const Tensor c = cos.to(heads.scalar_type()).reshape({tokens, 1, dim}), s = sin.to(heads.scalar_type()).reshape({tokens, 1, dim});
    const auto halves = heads.chunk(2, -1);
    x.copy_((heads * c + at::cat({-halves[1], halves[0]}, -1) * s).view(x.sizes()));
}

// ---- RMS normalisation ----

// The input with the dimensions that are normalised over, of the accumulation dtype.
struct RmsRows {
    Tensor input, weight, bias;  // the last two may be undefined
    Dims columns, rows;          // dimensions
    Dims stat_kept;              // the shape of a number for each row

    RmsRows(const Tensor& given, const Dims& normalized, const Maybes& gain, const Maybes& shift) : input(accumulated(given)) {
        const auto count = static_cast<int64_t>(normalized.size());
        TORCH_CHECK(count > 0 && count <= given.dim() && given.sizes().slice(given.dim() - count) == at::IntArrayRef(normalized),
                    "normalized_shape ", at::IntArrayRef(normalized), " is not the end of the input's shape ", given.sizes());
        for (int64_t dim = 0; dim < given.dim(); ++dim) {
            const bool inner = dim >= given.dim() - count;
            (inner ? columns : rows).push_back(dim);
            stat_kept.push_back(inner ? 1 : given.size(dim));
        }
        weight = affine(gain, normalized, "weight");
        bias = affine(shift, normalized, "bias");
    }
    Tensor affine(const Maybes& given, const Dims& normalized, const char* name) const {
        if (!given || !given->defined()) return {};
        TORCH_CHECK(given->sizes() == at::IntArrayRef(normalized), name, " has the shape ", given->sizes(), " instead of ",
                    at::IntArrayRef(normalized));
        return given->to(input.scalar_type());
    }
    // With or without the dimensions of length 1.
    Tensor check_stat(const Tensor& stat) const {
        const at::IntArrayRef kept(stat_kept);
        TORCH_CHECK(stat.sizes() == kept || stat.sizes() == kept.slice(0, rows.size()), "inv_rms has the shape ", stat.sizes(), ", but the rows are ",
                    kept.slice(0, rows.size()));
        return stat;
    }
};

// ---- masked softmax ----

// bool that broadcasts to the input, true where an element takes no part; undefined if all do.
Tensor hidden_of(const Tensor& input, const Maybes& mask, bool triangle) {
    TORCH_CHECK(input.dim() > 0 && (!triangle || input.dim() > 1), "a softmax over rows needs more dimensions than ", input.dim());
    if (!triangle) return mask && mask->defined() ? mask->ne(0).expand(input.sizes()) : Tensor();
    return at::ones({input.size(-2), input.size(-1)}, input.options().dtype(at::kBool)).triu(1);
}

}  // namespace

diopiError_t diopiRotaryEmbedding(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t x,
                                  diopiConstTensorHandle_t cos, diopiConstTensorHandle_t sin, const bool conj, const bool interleaved) {
    return run(ctx, __func__, [](Tensor& o, Tensor& x, Tensor& cos, Tensor& sin, bool conj, bool interleaved) {
        write(o, rotate(x, cos, sin, conj, interleaved), "out");
    }, out, x, cos, sin, conj, interleaved);
}

diopiError_t diopiRotaryEmbeddingV2(diopiContextHandle_t ctx, diopiTensorHandle_t query, diopiTensorHandle_t key,
                                    diopiConstTensorHandle_t cos, diopiConstTensorHandle_t sin, int64_t dim) {
    return run(ctx, __func__, [](Tensor& q, Tensor& k, Tensor& cos, Tensor& sin, int64_t dim) {
        rotate_heads(q, cos, sin, dim);
        rotate_heads(k, cos, sin, dim);
    }, query, key, cos, sin, dim);
}

diopiError_t diopiRMSNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t inv_rms, diopiConstTensorHandle_t input,
                          diopiSize_t normalized_shape, diopiConstTensorHandle_t weight, diopiConstTensorHandle_t bias, double eps) {
    return run(ctx, __func__, [](Tensor& o, Maybes& saved, Tensor& x, Dims shape, Maybes& weight, Maybes& bias, double eps) {
        const RmsRows given(x, shape, weight, bias);
        if (saved) given.check_stat(*saved);
        const Tensor inverses = (given.input * given.input).mean(given.columns, /*keepdim=*/true).add(eps).rsqrt();
        Tensor made = given.input * inverses;
        if (given.weight.defined()) made = made * given.weight;
        write(o, given.bias.defined() ? made + given.bias : made, "out");
        if (saved) saved->copy_(inverses.view(saved->sizes()));
    }, out, maybe(inv_rms), input, normalized_shape, maybe(weight), maybe(bias), eps);
}

// With y = x * r the gradient of x is r * (u - y * mean(u * y)), where u = grad * weight.
diopiError_t diopiRMSNormBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
                                  diopiTensorHandle_t grad_bias, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
                                  diopiConstTensorHandle_t weight, diopiConstTensorHandle_t bias, diopiConstTensorHandle_t inv_rms,
                                  diopiSize_t normalized_shape, double eps) {
    return run(ctx, __func__, [](Maybes& to_input, Maybes& to_weight, Maybes& to_bias, Tensor& grad, Tensor& x, Maybes& weight, Maybes& bias,
                                 Tensor& inverses, Dims shape) {
        const RmsRows given(x, shape, weight, bias);
        TORCH_CHECK(grad.sizes() == x.sizes(), "grad_output has the shape ", grad.sizes(), " but the input has ", x.sizes());
        const Tensor g = grad.to(given.input.scalar_type()), r = given.check_stat(inverses).to(g.scalar_type()).reshape(given.stat_kept);
        const Tensor y = given.input * r, u = given.weight.defined() ? g * given.weight : g;
        const auto summed = [&](const Tensor& each) { return given.rows.empty() ? each : each.sum(given.rows); };
        write(to_input, (u - y * (u * y).mean(given.columns, /*keepdim=*/true)) * r, "grad_input");
        write(to_weight, summed(y * g), "grad_weight");
        write(to_bias, summed(g), "grad_bias");
    }, maybe(grad_input), maybe(grad_weight), maybe(grad_bias), grad_output, input, maybe(weight), maybe(bias), inv_rms, normalized_shape);
}

diopiError_t diopiScaledMaskedSoftmax(diopiContextHandle_t ctx, diopiTensorHandle_t output, diopiConstTensorHandle_t input,
                                      diopiConstTensorHandle_t mask, double scale, bool fixed_triu_mask) {
    return run(ctx, __func__, [](Tensor& o, Tensor& x, Maybes& mask, double scale, bool triangle) {
        const Tensor hidden = hidden_of(x, mask, triangle), values = accumulated(x) * scale;
        if (!hidden.defined()) return write(o, at::softmax(values, -1), "output");
        // a row of which nothing is seen is 0
        const Tensor weights = at::softmax(values.masked_fill(hidden, -std::numeric_limits<double>::infinity()), -1);
        write(o, weights.masked_fill(hidden, 0), "output");
    }, output, input, maybe(mask), scale, fixed_triu_mask);
}

diopiError_t diopiScaledMaskedSoftmaxBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
                                              diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t output,
                                              diopiConstTensorHandle_t mask, double scale, bool fixed_triu_mask) {
    return run(ctx, __func__, [](Tensor& to, Tensor& grad, Tensor& output, Maybes& mask, double scale, bool triangle) {
        TORCH_CHECK(grad.sizes() == output.sizes(), "grad_output has the shape ", grad.sizes(), " but the output has ", output.sizes());
        const Tensor hidden = hidden_of(output, mask, triangle), y = accumulated(output), g = grad.to(y.scalar_type());
        const Tensor made = (g - (g * y).sum(-1, /*keepdim=*/true)) * y * scale;
        write(to, hidden.defined() ? made.masked_fill(hidden, 0) : made, "grad_input");
    }, grad_input, grad_output, output, maybe(mask), scale, fixed_triu_mask);
}

// This device is the only rank of its group, so the reduction changes nothing.
diopiError_t diopiMatmulAllReduce(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t x1,
                                  diopiConstTensorHandle_t x2, diopiConstTensorHandle_t bias, const char* group, const char* reduce_op,
                                  int64_t comm_turn, int64_t stream_mode) {
    return run(ctx, __func__, [](Tensor& o, Tensor& x1, Tensor& x2, Maybes& bias, std::string reduction) {
        TORCH_CHECK(reduction == "sum", "reduce_op must be sum, not '", reduction, "'");
        TORCH_CHECK(x1.dim() >= 1 && x2.dim() == 2 && x1.size(-1) == x2.size(0), "shapes ", x1.sizes(), " and ", x2.sizes(),
                    " cannot be multiplied");
        TORCH_CHECK(x1.scalar_type() == x2.scalar_type(), "x1 and x2 must have one dtype, but have ", x1.scalar_type(), " and ",
                    x2.scalar_type());
        TORCH_CHECK(!bias || (bias->dim() == 1 && bias->size(0) == x2.size(1)), "bias has the shape ", bias->sizes(), " instead of [",
                    x2.size(1), "]");
        accumulation(x1);
        const Tensor product = at::matmul(accumulated(x1), accumulated(x2));
        write(o, bias ? product + bias->to(product.scalar_type()) : product, "out");
    }, out, x1, x2, maybe(bias), reduce_op);
}
