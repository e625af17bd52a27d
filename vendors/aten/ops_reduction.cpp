// Reductions, softmax, running sums and losses.
#include "chip.h"

#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/core/Tensor.h>
#include KERNELS(_log_softmax_backward_data)
#include KERNELS(_log_softmax)
#include KERNELS(_softmax_backward_data)
#include KERNELS(_softmax)
#include KERNELS(all)
#include KERNELS(amax)
#include KERNELS(any)
#include KERNELS(argmax)
#include KERNELS(argmin)
#include KERNELS(cumsum)
#include <ATen/ops/linalg_vector_norm.h>
#include KERNELS(linalg_vector_norm)
#include KERNELS(max)
#include KERNELS(mean)
#include KERNELS(min)
#include KERNELS(mse_loss)
#include <ATen/ops/prod.h>
#include <ATen/ops/std.h>
#include KERNELS(sum)
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "kernel.h"
#include "reordered.h"
#include "results.h"

using namespace dipu_vendor;

// The interface does not say whether reduced dimensions are kept; the output does.
static bool kept(const at::Tensor& out, const at::Tensor& input) { return out.dim() == input.dim(); }

// No dimensions: all of them.
static at::OptionalIntArrayRef all_or(const Dims& dims) { return dims.empty() ? at::OptionalIntArrayRef() : at::OptionalIntArrayRef(dims); }

diopiError_t diopiSum(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiSize_t dim) {
    const auto body = [](at::Tensor& o, at::Tensor& x, Dims& d) {
        if (reordered()) return split_sums::sum(o, x, d, kept(o, x));
        kernels::sum_out(o, x, d, kept(o, x), o.scalar_type());
    };
    return run(ctx, __func__, body, out, input, dim);
}

diopiError_t diopiMean(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiSize_t dim) {
    const auto body = [](at::Tensor& o, at::Tensor& x, Dims& d) {
        if (reordered()) return split_sums::mean(o, x, d, kept(o, x));
        kernels::mean_out(o, x, d, kept(o, x), o.scalar_type());
    };
    return run(ctx, __func__, body, out, input, dim);
}

diopiError_t diopiStd(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiSize_t dim,
                      const diopiScalar_t* correction) {
    const auto body = [](at::Tensor& o, at::Tensor& x, Dims& d, std::optional<at::Scalar>& c) {
        write(o, at::std(x, all_or(d), c, kept(o, x)));
    };
    return run(ctx, __func__, body, out, input, dim, maybe(correction));
}

diopiError_t diopiProd(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, const int64_t* dim) {
    const auto body = [](at::Tensor& o, at::Tensor& x, std::optional<int64_t> d) {
        if (d) return write(o, at::prod(x, *d, kept(o, x), o.scalar_type()));
        const at::Tensor total = at::prod(x, o.scalar_type());
        write(o, kept(o, x) ? total.view(Dims(x.dim(), 1)) : total);
    };
    return run(ctx, __func__, body, out, input, dim);
}

// A norm in the precision of its output, as the caller allocated it.
static void vector_norm(at::Tensor& o, const at::Tensor& x, const at::Scalar& ord, const Dims& d, bool keepdim) {
    const double order = ord.toDouble();
    if (reordered() && order != 0 && std::isfinite(order))
        return split_sums::vector_norm(o, x.is_complex() ? x.abs() : x, order, d, keepdim);
    if (x.is_complex()) return write(o, at::linalg_vector_norm(x, ord, all_or(d), keepdim));
    kernels::linalg_vector_norm_out(o, x, ord, d, keepdim, o.scalar_type());
}

diopiError_t diopiLinalgVecNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                                diopiScalar_t* ord, diopiSize_t dim, bool keepdim) {
    const auto body = [](at::Tensor& o, at::Tensor& x, at::Scalar& p, Dims& d, bool keepdim) { vector_norm(o, x, p, d, keepdim); };
    return run(ctx, __func__, body, out, input, static_cast<const diopiScalar_t*>(ord), dim, keepdim);
}

diopiError_t diopiNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, const diopiScalar_t* p,
                       diopiSize_t dim) {
    const auto body = [](at::Tensor& o, at::Tensor& x, std::optional<at::Scalar>& p, Dims& d) {
        vector_norm(o, x, p.value_or(2), d, kept(o, x));
    };
    return run(ctx, __func__, body, out, input, maybe(p), dim);
}

// d norm / d x for every element; `norm` and the result broadcast against each other.
static at::Tensor norm_slope(const at::Tensor& x, const at::Tensor& norm, const Dims& dims, double p) {
    if (p == 0) return at::zeros_like(x);
    if (p == 1) return x.sgn();
    if (p == 2) return x / norm;
    const at::Tensor size = x.abs();
    if (std::isinf(p)) {
        const at::Tensor chosen = size == norm;
        return x.sgn() * chosen / chosen.sum(dims, /*keepdim=*/true);
    }
    const at::Tensor slope = x * size.pow(p - 2) / norm.pow(p - 1);
    return p < 2 ? slope.masked_fill(size == 0, 0) : slope;
}

diopiError_t diopiNormBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                               diopiConstTensorHandle_t self, diopiConstTensorHandle_t norm, diopiSize_t dim,
                               const diopiScalar_t* p) {
    const auto body = [](at::Tensor& o, at::Tensor& g, at::Tensor& x, at::Tensor& n, Dims& d, std::optional<at::Scalar>& p) {
        check_same_shape(g, n, "the gradient and the norm");
        const auto reduced = at::dim_list_to_bitset(all_or(d), x.dim());
        Dims sizes, axes;
        for (int64_t i = 0; i < x.dim(); ++i) {
            const bool gone = d.empty() || reduced[i];
            sizes.push_back(gone ? 1 : x.size(i));
            if (gone) axes.push_back(i);
        }
        const at::Tensor length = upcast(n).reshape(sizes), v = upcast(x);
        const at::Tensor slope = norm_slope(v, length, axes, p.value_or(2).toDouble());
        write(o, (slope * upcast(g).reshape(sizes)).masked_fill(length == 0, 0));
    };
    return run(ctx, __func__, body, grad_input, grad_output, self, norm, dim, maybe(p));
}

diopiError_t diopiForeachnormScalar(diopiContextHandle_t ctx, diopiTensorHandle_t* outs, diopiConstTensorHandle_t* inputs,
                                    int64_t inputSize, const diopiScalar_t* ord) {
    const auto body = [](std::vector<at::Tensor>& outs, std::vector<at::Tensor>& xs, at::Scalar& p) {
        for (size_t i = 0; i < xs.size(); ++i) {
            TORCH_CHECK(outs[i].defined() && xs[i].defined(), "tensor ", i, " of a list is NULL that must be given");
            write(outs[i], at::linalg_vector_norm(xs[i], p));
        }
    };
    return run(ctx, __func__, body, list(outs, inputSize), list(inputs, inputSize), ord);
}

diopiError_t diopiAmax(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t self, diopiSize_t dim,
                       bool keepdim) {
    const auto body = [](at::Tensor& o, at::Tensor& x, Dims& d, bool keepdim) { kernels::amax_out(o, x, d, keepdim); };
    return run(ctx, __func__, body, out, self, dim, keepdim);
}

#define EXTREMUM(Name, kernel)                                                                                                   \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t values, diopiTensorHandle_t indices,                  \
                             diopiConstTensorHandle_t input, int64_t dim) {                                                      \
        const auto body = [](at::Tensor& v, at::Tensor& i, at::Tensor& x, int64_t dim) { kernels::kernel(v, i, x, dim, kept(v, x)); }; \
        return run(ctx, __func__, body, values, indices, input, dim);                                                            \
    }                                                                                                                            \
    diopiError_t diopi##Name##All(diopiContextHandle_t ctx, diopiTensorHandle_t value, diopiConstTensorHandle_t input) {         \
        return run(ctx, __func__, [](at::Tensor& v, at::Tensor& x) { kernels::kernel(v, x); }, value, input);                    \
    }

EXTREMUM(Max, max_out)
EXTREMUM(Min, min_out)

#define POSITION(Name, kernel)                                                                                  \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, \
                             const int64_t* dim, bool keepdim) {                                                \
        const auto body = [](at::Tensor& o, at::Tensor& x, std::optional<int64_t> d, bool keepdim) {            \
            kernels::kernel(o, x, d, keepdim);                                                                  \
        };                                                                                                      \
        return run(ctx, __func__, body, out, input, dim, keepdim);                                              \
    }

POSITION(Argmax, argmax_out)
POSITION(Argmin, argmin_out)

// ATen answers about bytes in bytes.
#define QUANTIFIER(Name, kernel)                                                                                \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, \
                             const int64_t* dim) {                                                              \
        const auto body = [](at::Tensor& o, at::Tensor& x, std::optional<int64_t> d) {                          \
            if (x.scalar_type() == at::kByte || o.scalar_type() != at::kBool)                                   \
                return write(o, d ? kernels::kernel(x, *d, kept(o, x)) : kernels::kernel(x));                   \
            if (d) return void(kernels::kernel##_out(o, x, *d, kept(o, x)));                                    \
            kernels::kernel##_out(o, x);                                                                        \
        };                                                                                                      \
        return run(ctx, __func__, body, out, input, dim);                                                       \
    }

QUANTIFIER(Any, any)
QUANTIFIER(All, all)

diopiError_t diopiCumsum(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t dim) {
    const auto body = [](at::Tensor& o, at::Tensor& x, int64_t dim) { kernels::cumsum_out(o, x, dim, o.scalar_type()); };
    return run(ctx, __func__, body, out, input, dim);
}

diopiError_t diopiCumsumBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                 int64_t dim) {
    const auto body = [](at::Tensor& o, at::Tensor& g, int64_t dim) {
        const at::Tensor total = g.dim() ? g.flip(dim).cumsum(dim).flip(dim) : g.cumsum(dim);
        write(o, total);
    };
    return run(ctx, __func__, body, grad_input, grad_output, dim);
}

#define SOFTMAX(Name, kernel, split)                                                                                           \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, int64_t dim) { \
        const auto body = [](at::Tensor& o, at::Tensor& x, int64_t dim) {                                                      \
            if (reordered()) return split_sums::split(o, x, dim);                                                              \
            if (o.is_contiguous() && o.scalar_type() == x.scalar_type())                                                       \
                return void(kernels::kernel##_out(o, x, dim, /*half_to_float=*/false));                                        \
            write(o, kernels::kernel(x, dim, /*half_to_float=*/false));                                                        \
        };                                                                                                                     \
        return run(ctx, __func__, body, out, input, dim);                                                                      \
    }

SOFTMAX(Softmax, _softmax, softmax)
SOFTMAX(LogSoftmax, _log_softmax, log_softmax)

#define SOFTMAX_BACKWARD(Name, kernel, split)                                                                                        \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,         \
                             diopiConstTensorHandle_t output, int64_t dim) {                                                         \
        const auto body = [](at::Tensor& o, at::Tensor& g, at::Tensor& y, int64_t dim) {                                             \
            check_same_shape(g, y, "the gradient and the output");                                                                   \
            if (reordered()) return split_sums::split(o, g, y, dim);                                                                 \
            if (o.is_contiguous()) return void(kernels::kernel##_out(o, g, y, dim, o.scalar_type()));                                \
            write(o, kernels::kernel(g, y, dim, o.scalar_type()));                                                                   \
        };                                                                                                                           \
        return run(ctx, __func__, body, grad_input, grad_output, output, dim);                                                       \
    }

SOFTMAX_BACKWARD(SoftmaxBackward, _softmax_backward_data, softmax_backward)
SOFTMAX_BACKWARD(LogSoftmaxBackward, _log_softmax_backward_data, log_softmax_backward)

diopiError_t diopiMSELoss(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                          diopiConstTensorHandle_t target, diopiReduction_t reduction) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), t = view(target), reduction]() mutable {
        if (reordered() && reduction != ReductionNone) return split_sums::mse_loss(o, x, t, reduction == ReductionMean);
        if (reduction == ReductionNone) return void(kernels::mse_loss_out(o, x, t, reduction));
        o.copy_(kernels::mse_loss(x, t, reduction));  // the out form resizes its output on the way
    });
}
