// Fused operators of language models: rotary embedding, RMS normalisation, masked softmax, a product with its reduction over ranks.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "attention.h"

using namespace dipu_vendor;

namespace {

// Calls `body` with a value of the type that sums are kept in.
template <class Body>
void in_accumulation(const at::Tensor& like, Body body) {
    if (accumulation(like) == at::kDouble) {
        body(double{});
    } else {
        body(float{});
    }
}

// ---- rotary embedding ----

// Turns the pair (x[first], x[second]) by an angle.
template <class T>
void turn(const T* x, T* out, int64_t first, int64_t second, T cos, T sin) {
    const T a = x[first], b = x[second];
    out[first] = a * cos - b * sin;
    out[second] = b * cos + a * sin;
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool conj, bool interleaved) {
    TORCH_CHECK(x.dim() > 0 && x.size(-1) % 2 == 0, "rotary embedding turns pairs, but x has the shape ", x.sizes());
    const int64_t width = x.size(-1), half = width / 2;
    Dims sizes(x.sizes().begin(), x.sizes().end());
    sizes.back() = half;
    TORCH_CHECK(cos.dim() > 0 && sin.dim() > 0 && cos.size(-1) == half && sin.size(-1) == half, "cos and sin must have ", half,
                " numbers for a width of ", width, ", but have the shapes ", cos.sizes(), " and ", sin.sizes());
    const at::Tensor values = accumulated(x), made = at::empty_like(values);
    const at::Tensor cosines = cos.to(values.scalar_type()).expand(sizes).contiguous(),
    sines = sin.to(values.scalar_type()).expand(sizes).contiguous();
    in_accumulation(x, [&](auto zero) {
        using T = decltype(zero);
        const T *in = values.const_data_ptr<T>(), *c = cosines.const_data_ptr<T>(), *s = sines.const_data_ptr<T>();
        T* out = made.data_ptr<T>();
        const int64_t rows = width ? values.numel() / width : 0;
        for (int64_t row = 0; row < rows; ++row, in += width, out += width, c += half, s += half)
            for (int64_t i = 0; i < half; ++i)
                turn<T>(in, out, interleaved ? 2 * i : i, interleaved ? 2 * i + 1 : half + i, c[i], conj ? -s[i] : s[i]);
    });
    return made;
}

// Heads of width `dim` for each token, in place; the second half of a head may have angles of its own.
void rotate_heads(at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t dim) {
    TORCH_CHECK(dim > 0 && dim % 2 == 0, "a head cannot have the width ", dim, "; it must be positive and even");
    TORCH_CHECK(cos.numel() == sin.numel() && cos.numel() % dim == 0, "cos ", cos.sizes(), " and sin ", sin.sizes(), " must hold ", dim,
                " numbers for each token");
    const int64_t tokens = cos.numel() / dim;
    const bool by_token = x.dim() >= 2 && (x.size(0) == tokens || (x.dim() >= 3 && x.size(0) * x.size(1) == tokens));
    TORCH_CHECK(by_token && x.size(-1) % dim == 0, "a tensor of shape ", x.sizes(), " does not consist of ", tokens,
                " tokens with heads of ", dim);
    const at::Tensor values = accumulated(x), made = at::empty_like(values);
    const at::Tensor cosines = cos.to(values.scalar_type()).contiguous(), sines = sin.to(values.scalar_type()).contiguous();
    in_accumulation(x, [&](auto zero) {
        using T = decltype(zero);
        const T* in = values.const_data_ptr<T>();
        T* out = made.data_ptr<T>();
        const int64_t heads = values.numel() / std::max<int64_t>(tokens * dim, 1), half = dim / 2;
        for (int64_t token = 0; token < tokens; ++token) {
            const T *c = cosines.const_data_ptr<T>() + token * dim, *s = sines.const_data_ptr<T>() + token * dim;
            for (int64_t head = 0; head < heads; ++head, in += dim, out += dim)
                for (int64_t i = 0; i < half; ++i) {
                    out[i] = in[i] * c[i] - in[half + i] * s[i];
                    out[half + i] = in[half + i] * c[half + i] + in[i] * s[half + i];
                }
        }
    });
    x.copy_(made);
}

// ---- RMS normalisation ----

// The input as rows that are normalised, with one gain and one shift for each column.
struct RmsRows {
    int64_t rows = 0, columns = 1;
    at::Tensor input, weight, bias;  // contiguous, of the accumulation dtype; the last two may be undefined
    Dims stat, stat_kept;            // the shapes that a number for each row may have

    RmsRows(const at::Tensor& given, const Dims& normalized, const Maybes& gain, const Maybes& shift) : input(accumulated(given)) {
        const auto count = static_cast<int64_t>(normalized.size());
        TORCH_CHECK(count > 0 && count <= given.dim() && given.sizes().slice(given.dim() - count) == at::IntArrayRef(normalized),
                    "normalized_shape ", at::IntArrayRef(normalized), " is not the end of the input's shape ", given.sizes());
        for (int64_t dim = 0; dim < given.dim(); ++dim) {
            const bool inner = dim >= given.dim() - count;
            if (inner) columns *= given.size(dim);
            if (!inner) stat.push_back(given.size(dim));
            stat_kept.push_back(inner ? 1 : given.size(dim));
        }
        rows = columns ? given.numel() / columns : 0;
        weight = affine(gain, normalized, "weight");
        bias = affine(shift, normalized, "bias");
    }

    at::Tensor affine(const Maybes& given, const Dims& normalized, const char* name) const {
        if (!given || !given->defined()) return {};
        TORCH_CHECK(given->sizes() == at::IntArrayRef(normalized), name, " has the shape ", given->sizes(), " instead of ",
                    at::IntArrayRef(normalized));
        return given->to(input.scalar_type()).contiguous();
    }
    bool fits_stat(const at::Tensor& tensor) const {
        return tensor.sizes() == at::IntArrayRef(stat) || tensor.sizes() == at::IntArrayRef(stat_kept);
    }
};

template <class T>
void rms_forward(const RmsRows& given, double eps, at::Tensor& made, at::Tensor& inverses) {
    const T* x = given.input.const_data_ptr<T>();
    const T* gain = given.weight.defined() ? given.weight.const_data_ptr<T>() : nullptr;
    const T* shift = given.bias.defined() ? given.bias.const_data_ptr<T>() : nullptr;
    T *out = made.data_ptr<T>(), *inverse = inverses.data_ptr<T>();
    for (int64_t row = 0; row < given.rows; ++row, x += given.columns, out += given.columns) {
        double squares = 0;
        for (int64_t i = 0; i < given.columns; ++i) squares += static_cast<double>(x[i]) * x[i];
        const T scale = inverse[row] = static_cast<T>(1 / std::sqrt(squares / static_cast<double>(given.columns) + eps));
        for (int64_t i = 0; i < given.columns; ++i) {
            const T normalized = x[i] * scale;
            out[i] = (gain ? normalized * gain[i] : normalized) + (shift ? shift[i] : T(0));
        }
    }
}

struct RmsGradients {
    at::Tensor input, weight, bias;
};

// With y = x * r the gradient of x is r * (u - y * mean(u * y)), where u = grad * weight.
template <class T>
void rms_backward(const RmsRows& given, const at::Tensor& grad, const at::Tensor& inverses, RmsGradients& made) {
    const T *x = given.input.const_data_ptr<T>(), *g = grad.const_data_ptr<T>(), *inverse = inverses.const_data_ptr<T>();
    const T* gain = given.weight.defined() ? given.weight.const_data_ptr<T>() : nullptr;
    T* to_input = made.input.data_ptr<T>();
    double *to_weight = made.weight.data_ptr<double>(), *to_bias = made.bias.data_ptr<double>();
    const int64_t columns = given.columns;
    for (int64_t row = 0; row < given.rows; ++row, x += columns, g += columns, to_input += columns) {
        double product = 0;
        for (int64_t i = 0; i < columns; ++i) {
            const double y = static_cast<double>(x[i]) * inverse[row];
            product += y * (gain ? static_cast<double>(g[i]) * gain[i] : g[i]);
            to_weight[i] += y * g[i];
            to_bias[i] += g[i];
        }
        const double mean = product / static_cast<double>(columns);
        for (int64_t i = 0; i < columns; ++i) {
            const double y = static_cast<double>(x[i]) * inverse[row], u = gain ? static_cast<double>(g[i]) * gain[i] : g[i];
            to_input[i] = static_cast<T>((u - y * mean) * inverse[row]);
        }
    }
}

// ---- masked softmax ----

// bool of the input's shape, true where an element takes no part; undefined if all do.
at::Tensor hidden_of(const at::Tensor& input, const Maybes& mask, bool triangle) {
    TORCH_CHECK(input.dim() > 0 && (!triangle || input.dim() > 1), "a softmax over rows needs more dimensions than ", input.dim());
    if (!triangle) return mask && mask->defined() ? mask->ne(0).expand(input.sizes()).contiguous() : at::Tensor();
    at::Tensor above = at::zeros({input.size(-2), input.size(-1)}, at::TensorOptions().dtype(at::kBool));
    for (int64_t row = 0; row + 1 < input.size(-1) && row < input.size(-2); ++row)
        above.select(0, row).narrow(0, row + 1, input.size(-1) - row - 1).fill_(true);
    return above.expand(input.sizes()).contiguous();
}

template <class T>
void softmax_row(const T* x, const bool* hidden, T* out, int64_t columns, double scale) {
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    const auto shown = [&](int64_t i) { return !hidden || !hidden[i]; };
    for (int64_t i = 0; i < columns; ++i)
        if (shown(i)) largest = std::max(largest, x[i] * scale);
    for (int64_t i = 0; i < columns; ++i)
        if (shown(i)) sum += std::exp(x[i] * scale - largest);
    for (int64_t i = 0; i < columns; ++i) out[i] = shown(i) ? static_cast<T>(std::exp(x[i] * scale - largest) / sum) : T(0);
}

template <class T>
void softmax_row_backward(const T* g, const T* y, const bool* hidden, T* out, int64_t columns, double scale) {
    double product = 0;
    for (int64_t i = 0; i < columns; ++i) product += static_cast<double>(g[i]) * y[i];
    for (int64_t i = 0; i < columns; ++i) out[i] = hidden && hidden[i] ? T(0) : static_cast<T>(scale * y[i] * (g[i] - product));
}

// `body(row's offset, its part of the hidden ones or NULL)` for every row.
template <class Body>
void each_row(const at::Tensor& tensor, const at::Tensor& hidden, Body body) {
    const int64_t columns = tensor.size(-1), rows = columns ? tensor.numel() / columns : 0;
    const bool* flags = hidden.defined() ? hidden.const_data_ptr<bool>() : nullptr;
    for (int64_t row = 0; row < rows; ++row) body(row * columns, flags ? flags + row * columns : nullptr);
}

// ---- products ----

template <class T>
void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, at::Tensor& made) {
    const int64_t inner = b.size(0), columns = b.size(1), rows = a.size(0);
    const T *left = a.const_data_ptr<T>(), *right = b.const_data_ptr<T>(), *shift = bias.defined() ? bias.const_data_ptr<T>() : nullptr;
    T* out = made.data_ptr<T>();
    std::vector<double> sums(static_cast<size_t>(columns));
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < columns; ++i) sums[i] = shift ? shift[i] : 0;
        for (int64_t j = 0; j < inner; ++j)
            for (int64_t i = 0; i < columns; ++i) sums[i] += static_cast<double>(left[row * inner + j]) * right[j * columns + i];
        for (int64_t i = 0; i < columns; ++i) out[row * columns + i] = static_cast<T>(sums[i]);
    }
}

}  // namespace

diopiError_t diopiRotaryEmbedding(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t x,
                                  diopiConstTensorHandle_t cos, diopiConstTensorHandle_t sin, const bool conj, const bool interleaved) {
    return run(
        ctx, __func__, [](at::Tensor& o, at::Tensor& x, at::Tensor& cos, at::Tensor& sin, bool conj, bool interleaved) {
            write(o, rotate(x, cos, sin, conj, interleaved), "out");
        },
        out, x, cos, sin, conj, interleaved);
}

diopiError_t diopiRotaryEmbeddingV2(diopiContextHandle_t ctx, diopiTensorHandle_t query, diopiTensorHandle_t key,
                                    diopiConstTensorHandle_t cos, diopiConstTensorHandle_t sin, int64_t dim) {
    return run(
        ctx, __func__, [](at::Tensor& q, at::Tensor& k, at::Tensor& cos, at::Tensor& sin, int64_t dim) {
            rotate_heads(q, cos, sin, dim);
            rotate_heads(k, cos, sin, dim);
        },
        query, key, cos, sin, dim);
}

diopiError_t diopiRMSNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t inv_rms, diopiConstTensorHandle_t input,
                          diopiSize_t normalized_shape, diopiConstTensorHandle_t weight, diopiConstTensorHandle_t bias, double eps) {
    return run(
        ctx, __func__, [](at::Tensor& o, Maybes& saved, at::Tensor& x, Dims shape, Maybes& weight, Maybes& bias, double eps) {
            const RmsRows given(x, shape, weight, bias);
            TORCH_CHECK(!saved || given.fits_stat(*saved), "inv_rms has the shape ", saved->sizes(), ", but there are ", given.rows,
                        " rows");
            at::Tensor made = at::empty_like(given.input), inverses = at::empty(given.stat, given.input.options());
            in_accumulation(x, [&](auto zero) { rms_forward<decltype(zero)>(given, eps, made, inverses); });
            write(o, made, "out");
            if (saved) saved->copy_(inverses.view(saved->sizes()));
        },
        out, maybe(inv_rms), input, normalized_shape, maybe(weight), maybe(bias), eps);
}

diopiError_t diopiRMSNormBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
                                  diopiTensorHandle_t grad_bias, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
                                  diopiConstTensorHandle_t weight, diopiConstTensorHandle_t bias, diopiConstTensorHandle_t inv_rms,
                                  diopiSize_t normalized_shape, double eps) {
    return run(
        ctx, __func__,
        [](Maybes& to_input, Maybes& to_weight, Maybes& to_bias, at::Tensor& grad, at::Tensor& x, Maybes& weight, Maybes& bias,
           at::Tensor& inverses, Dims shape) {
            const RmsRows given(x, shape, weight, bias);
            TORCH_CHECK(grad.sizes() == x.sizes(), "grad_output has the shape ", grad.sizes(), " but the input has ", x.sizes());
            TORCH_CHECK(given.fits_stat(inverses), "inv_rms has the shape ", inverses.sizes(), ", but there are ", given.rows, " rows");
            const auto type = given.input.scalar_type();
            const auto sums = at::TensorOptions().dtype(at::kDouble);
            RmsGradients made{at::empty_like(given.input), at::zeros(shape, sums), at::zeros(shape, sums)};
            const at::Tensor grads = grad.to(type).contiguous(), saved = inverses.to(type).contiguous();
            in_accumulation(x, [&](auto zero) { rms_backward<decltype(zero)>(given, grads, saved, made); });
            write(to_input, made.input, "grad_input");
            write(to_weight, made.weight, "grad_weight");
            write(to_bias, made.bias, "grad_bias");
        },
        maybe(grad_input), maybe(grad_weight), maybe(grad_bias), grad_output, input, maybe(weight), maybe(bias), inv_rms, normalized_shape);
}

diopiError_t diopiScaledMaskedSoftmax(diopiContextHandle_t ctx, diopiTensorHandle_t output, diopiConstTensorHandle_t input,
                                      diopiConstTensorHandle_t mask, double scale, bool fixed_triu_mask) {
    return run(
        ctx, __func__, [](at::Tensor& o, at::Tensor& x, Maybes& mask, double scale, bool triangle) {
            const at::Tensor hidden = hidden_of(x, mask, triangle), values = accumulated(x), made = at::empty_like(values);
            in_accumulation(x, [&](auto zero) {
                using T = decltype(zero);
                each_row(values, hidden, [&](int64_t at, const bool* flags) {
                    softmax_row(values.const_data_ptr<T>() + at, flags, made.data_ptr<T>() + at, values.size(-1), scale);
                });
            });
            write(o, made, "output");
        },
        output, input, maybe(mask), scale, fixed_triu_mask);
}

diopiError_t diopiScaledMaskedSoftmaxBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
                                              diopiConstTensorHandle_t grad_output,
                                              diopiConstTensorHandle_t output, diopiConstTensorHandle_t mask, double scale,
                                              bool fixed_triu_mask) {
    return run(
        ctx, __func__, [](at::Tensor& to, at::Tensor& grad, at::Tensor& output, Maybes& mask, double scale, bool triangle) {
            TORCH_CHECK(grad.sizes() == output.sizes(), "grad_output has the shape ", grad.sizes(), " but the output has ", output.sizes());
            const at::Tensor hidden = hidden_of(output, mask, triangle), y = accumulated(output), made = at::empty_like(y);
            const at::Tensor grads = grad.to(y.scalar_type()).contiguous();
            in_accumulation(output, [&](auto zero) {
                using T = decltype(zero);
                each_row(y, hidden, [&](int64_t at, const bool* flags) {
                    softmax_row_backward(grads.const_data_ptr<T>() + at, y.const_data_ptr<T>() + at, flags, made.data_ptr<T>() + at,
                                         y.size(-1), scale);
                });
            });
            write(to, made, "grad_input");
        },
        grad_input, grad_output, output, maybe(mask), scale, fixed_triu_mask);
}

// This device is the only rank of its group, so the reduction changes nothing.
diopiError_t diopiMatmulAllReduce(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t x1,
                                  diopiConstTensorHandle_t x2,
                                  diopiConstTensorHandle_t bias, const char* group, const char* reduce_op, int64_t comm_turn,
                                  int64_t stream_mode) {
    return run(
        ctx, __func__, [](at::Tensor& o, at::Tensor& x1, at::Tensor& x2, Maybes& bias, std::string reduction) {
            TORCH_CHECK(reduction == "sum", "reduce_op must be sum, not '", reduction, "'");
            TORCH_CHECK(x1.dim() >= 1 && x2.dim() == 2 && x1.size(-1) == x2.size(0), "shapes ", x1.sizes(), " and ", x2.sizes(),
                        " cannot be multiplied");
            TORCH_CHECK(x1.scalar_type() == x2.scalar_type(), "x1 and x2 must have one dtype, but have ", x1.scalar_type(), " and ",
                        x2.scalar_type());
            TORCH_CHECK(!bias || (bias->dim() == 1 && bias->size(0) == x2.size(1)), "bias has the shape ", bias->sizes(), " instead of [",
                        x2.size(1), "]");
            Dims sizes(x1.sizes().begin(), x1.sizes().end());
            sizes.back() = x2.size(1);
            const int64_t rows = std::accumulate(sizes.begin(), sizes.end() - 1, int64_t{1}, std::multiplies<>());
            const at::Tensor a = accumulated(x1).view({rows, x2.size(0)}), b = accumulated(x2);
            const at::Tensor shift = bias ? bias->to(b.scalar_type()).contiguous() : at::Tensor();
            at::Tensor made = at::empty({rows, x2.size(1)}, b.options());
            in_accumulation(x1, [&](auto zero) { multiply<decltype(zero)>(a, b, shift, made); });
            write(o, made.view(sizes), "out");
        },
        out, x1, x2, maybe(bias), reduce_op);
}
