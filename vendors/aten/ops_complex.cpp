// Complex numbers, sequences of numbers, and vectors divided by their norms.
#include "chip.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include KERNELS(arange)
#include KERNELS(complex)
#include KERNELS(conj_physical)
#include <ATen/ops/div.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/linalg_vector_norm.h>
#include KERNELS(linspace)
#include <ATen/ops/real.h>

#include <cmath>

#include "kernel.h"
#include "results.h"

using namespace dipu_vendor;

diopiError_t diopiComplex(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t real, diopiConstTensorHandle_t imag) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& re, at::Tensor& im) { kernels::complex_out(o, re, im); }, out, real, imag);
}

diopiError_t diopiConj(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x) {
        if (x.is_complex()) {
            kernels::conj_physical_out(o, x);
        } else {
            write(o, x);
        }
    }, out, input);
}

diopiError_t diopiReal(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x) { write(o, at::real(x)); }, out, input);
}

diopiError_t diopiImag(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x) { write(o, at::imag(x)); }, out, input);
}

diopiError_t diopiArange(diopiContextHandle_t ctx, diopiTensorHandle_t out, const diopiScalar_t* start, const diopiScalar_t* end,
                         const diopiScalar_t* step) {
    return run(ctx, __func__, [](at::Tensor& o, at::Scalar from, at::Scalar to, at::Scalar by) { kernels::arange_out(o, from, to, by); },
               out, start, end, step);
}

diopiError_t diopiLinspace(diopiContextHandle_t ctx, diopiTensorHandle_t out, const diopiScalar_t* start, const diopiScalar_t* end,
                           int64_t steps) {
    return run(ctx, __func__, [](at::Tensor& o, at::Scalar from, at::Scalar to, int64_t n) { kernels::linspace_out(o, from, to, n); },
               out, start, end, steps);
}

diopiError_t diopiNormalize(diopiContextHandle_t ctx, diopiTensorHandle_t output, diopiConstTensorHandle_t input, const float p,
                            const int64_t axis, const double eps) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, float order, int64_t along, double least) {
        at::div_out(o, x, at::linalg_vector_norm(x, order, along, /*keepdim=*/true).clamp_min(least));
    }, output, input, p, axis, eps);
}

namespace {

// The derivative of a norm with respect to the elements of its vector.
at::Tensor norm_slope(const at::Tensor& x, const at::Tensor& norm, double order, int64_t axis) {
    const at::Tensor size = x.abs();
    at::Tensor slope;
    if (std::isinf(order)) {
        const at::Tensor extreme = size.eq(norm);
        slope = x.sgn() * extreme / extreme.sum(axis, /*keepdim=*/true);
    } else {
        slope = x.sgn() * (size / norm).pow(order - 1);
    }
    return slope.masked_fill(norm.eq(0).logical_or(x.eq(0)), 0);
}

}  // namespace

diopiError_t diopiNormalizeBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                    diopiConstTensorHandle_t input, const float p, const int64_t axis, const double eps) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& grad, at::Tensor& narrow, float order, int64_t along, double least) {
        TORCH_CHECK(grad.sizes() == narrow.sizes(), "grad_output has the shape ", grad.sizes(), " but the input has ", narrow.sizes());
        const at::Tensor x = upcast(narrow), g = upcast(grad);
        const at::Tensor norm = at::linalg_vector_norm(x, order, along, /*keepdim=*/true);
        const at::Tensor divisor = norm.clamp_min(least);
        const at::Tensor product = x.is_complex() ? at::real(g * x.conj()) : g * x;
        // a norm below eps is not the divisor, which then does not depend on the input
        const at::Tensor towards = (product.sum(along, /*keepdim=*/true) / divisor / divisor).masked_fill(norm.lt(least), 0);
        write(o, g / divisor - towards * norm_slope(x, norm, order, along));
    }, grad_input, grad_output, input, p, axis, eps);
}
