// Functions of one number: signs, powers, exponentials, trigonometry, activations and their gradients.
#include "chip.h"

#include <ATen/core/Tensor.h>
#include KERNELS(abs)
#include KERNELS(acos)
#include KERNELS(acosh)
#include KERNELS(asin)
#include KERNELS(asinh)
#include KERNELS(atan)
#include KERNELS(atanh)
#include KERNELS(ceil)
#include KERNELS(clamp_min)
#include KERNELS(cos)
#include KERNELS(cosh)
#include KERNELS(erf)
#include KERNELS(erfinv)
#include KERNELS(exp)
#include KERNELS(expm1)
#include KERNELS(floor)
#include KERNELS(gelu_backward)
#include KERNELS(gelu)
#include KERNELS(hardswish_backward)
#include KERNELS(hardswish)
#include KERNELS(hardtanh_backward)
#include KERNELS(hardtanh)
#include KERNELS(leaky_relu_backward)
#include KERNELS(leaky_relu)
#include KERNELS(log10)
#include KERNELS(log1p)
#include KERNELS(log2)
#include KERNELS(log)
#include KERNELS(neg)
#include KERNELS(reciprocal)
#include KERNELS(rsqrt)
#include KERNELS(sgn)
#include KERNELS(sigmoid_backward)
#include KERNELS(sigmoid)
#include KERNELS(sign)
#include KERNELS(silu_backward)
#include KERNELS(silu)
#include KERNELS(sin)
#include KERNELS(sinh)
#include KERNELS(sqrt)
#include KERNELS(tan)
#include KERNELS(tanh_backward)
#include KERNELS(tanh)
#include KERNELS(threshold_backward)
#include KERNELS(threshold)

#include "fast.h"
#include "kernel.h"
#include "results.h"

using namespace dipu_vendor;

#define UNARY_BODY(Name, call)                                                                         \
    static diopiError_t run##Name(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, \
                                  diopiConstTensorHandle_t input) {                                    \
        return run(ctx, name, [](at::Tensor& o, at::Tensor& x) { kernels::call; }, out, input);        \
    }

// With a short way; `formula` is of a float x.
#define FLAT_UNARY_BODY(Name, call, formula)                                                                 \
    static diopiError_t run##Name(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out,       \
                                  diopiConstTensorHandle_t input) {                                          \
        if (auto done = flat(ctx, name, [](float x) -> float { return formula; }, out, input)) return *done; \
        return run(ctx, name, [](at::Tensor& o, at::Tensor& x) { kernels::call; }, out, input);              \
    }

#define OUT_FORM(Name)                                                                                            \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) { \
        return run##Name(ctx, __func__, out, input);                                                              \
    }

// In place is the out form with its input as the output: one body serves both.
#define BOTH_FORMS(Name)                                                                 \
    OUT_FORM(Name)                                                                       \
    diopiError_t diopi##Name##Inp(diopiContextHandle_t ctx, diopiTensorHandle_t input) { \
        return run##Name(ctx, __func__, input, input);                                   \
    }

#define UNARY(Name, call)  \
    UNARY_BODY(Name, call) \
    BOTH_FORMS(Name)

#define FLAT_UNARY(Name, call, formula)  \
    FLAT_UNARY_BODY(Name, call, formula) \
    BOTH_FORMS(Name)

FLAT_UNARY(Neg, neg_out(o, x), -x)
FLAT_UNARY(Abs, abs_out(o, x), std::fabs(x))
FLAT_UNARY(Reciprocal, reciprocal_out(o, x), 1.0f / x)
FLAT_UNARY(Relu, clamp_min_out(o, x, at::Scalar(0)), x < 0.0f ? 0.0f : x)  // NaN and -0 pass, as in ATen
UNARY(Floor, floor_out(o, x))
UNARY(Ceil, ceil_out(o, x))
UNARY(Exp, exp_out(o, x))
UNARY(Expm1, expm1_out(o, x))
UNARY(Log, log_out(o, x))
UNARY(Log2, log2_out(o, x))
UNARY(Log10, log10_out(o, x))
UNARY(Log1p, log1p_out(o, x))
UNARY(Sqrt, sqrt_out(o, x))
// Of half dtypes ATen rounds the root before it divides, unless it can use vectors.
UNARY(Rsqrt, rsqrt_out(o, upcast(x)))
UNARY(Sin, sin_out(o, x))
UNARY(Cos, cos_out(o, x))
UNARY(Tan, tan_out(o, x))
UNARY(Asin, asin_out(o, x))
UNARY(Acos, acos_out(o, x))
UNARY(Atan, atan_out(o, x))
UNARY(Sinh, sinh_out(o, x))
UNARY(Cosh, cosh_out(o, x))
UNARY(Tanh, tanh_out(o, x))
UNARY(Asinh, asinh_out(o, x))
UNARY(Acosh, acosh_out(o, x))
UNARY(Atanh, atanh_out(o, x))
UNARY(Erf, erf_out(o, x))
UNARY(Erfinv, erfinv_out(o, x))
UNARY(Sigmoid, sigmoid_out(o, x))
UNARY(Silu, silu_out(o, x))
UNARY(Hardswish, hardswish_out(o, x))
UNARY(Sgn, sgn_out(o, x))
UNARY_BODY(Sign, sign_out(o, x))
OUT_FORM(Sign)

// With two numbers, `a` and `b`.
#define UNARY_OF_TWO(Name, call)                                                                                                     \
    static diopiError_t run##Name(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiConstTensorHandle_t input, \
                                  const diopiScalar_t* first, const diopiScalar_t* second) {                                         \
        return run(ctx, name, [](at::Tensor& o, at::Tensor& x, at::Scalar a, at::Scalar b) { kernels::call; }, out, input, first, second); \
    }                                                                                                                                \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,                      \
                             const diopiScalar_t* first, const diopiScalar_t* second) {                                              \
        return run##Name(ctx, __func__, out, input, first, second);                                                                  \
    }                                                                                                                                \
    diopiError_t diopi##Name##Inp(diopiContextHandle_t ctx, diopiTensorHandle_t input, const diopiScalar_t* first,                   \
                                  const diopiScalar_t* second) {                                                                     \
        return run##Name(ctx, __func__, input, input, first, second);                                                                \
    }

UNARY_OF_TWO(Threshold, threshold_out(o, x, a, b))
UNARY_OF_TWO(Hardtanh, hardtanh_out(o, x, a, b))

// Gradients of a function of one number from grad_output and one other tensor.
#define BACKWARD(Name, call)                                                                                                 \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output, \
                             diopiConstTensorHandle_t saved) {                                                               \
        return run(ctx, __func__, [](at::Tensor& o, at::Tensor& g, at::Tensor& x) { call; }, grad_input, grad_output, saved); \
    }

BACKWARD(TanhBackward, kernels::tanh_backward_out(o, g, x))
BACKWARD(SigmoidBackward, kernels::sigmoid_backward_out(o, g, x))
BACKWARD(SiluBackward, kernels::silu_backward_out(o, g, x))

BACKWARD(HardswishBackward, write(o, kernels::hardswish_backward(g, x)))

diopiError_t diopiThresholdBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                    diopiConstTensorHandle_t input, const diopiScalar_t* threshold) {
    if (const auto limit = flat_scalar(threshold)) {
        const auto gate = [limit = *limit](float g, float x) { return x <= limit ? 0.0f : g; };
        if (auto done = flat(ctx, __func__, gate, grad_input, grad_output, input)) return *done;
    }
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& g, at::Tensor& x, at::Scalar limit) {
        kernels::threshold_backward_out(o, g, x, limit);
    }, grad_input, grad_output, input, threshold);
}

// ATen's library for it (oneDNN) leaves an output alone that is not laid out like the input.
diopiError_t diopiGelu(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, const char* approximate) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, std::string form) {
        if (o.is_contiguous() && x.is_contiguous()) {
            kernels::gelu_out(o, x, form);
        } else {
            write(o, kernels::gelu(x, form));
        }
    }, out, input, approximate);
}

diopiError_t diopiGeluBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                               diopiConstTensorHandle_t input, const char* approximate) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& g, at::Tensor& x, std::string form) {
        if (o.is_contiguous() && g.is_contiguous() && x.is_contiguous()) {
            kernels::gelu_backward_out(o, g, x, form);
        } else {
            write(o, kernels::gelu_backward(g, x, form));
        }
    }, grad_input, grad_output, input, approximate);
}

static diopiError_t run_leaky_relu(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                                   const diopiScalar_t* slope) {
    return run(ctx, name, [](at::Tensor& o, at::Tensor& x, at::Scalar s) { kernels::leaky_relu_out(o, x, s); }, out, input, slope);
}

diopiError_t diopiLeakyRelu(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                            const diopiScalar_t* negative_slope) {
    return run_leaky_relu(ctx, __func__, out, input, negative_slope);
}

diopiError_t diopiLeakyReluInp(diopiContextHandle_t ctx, diopiTensorHandle_t input, const diopiScalar_t* negative_slope) {
    return run_leaky_relu(ctx, __func__, input, input, negative_slope);
}

diopiError_t diopiLeakyReluBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                    diopiConstTensorHandle_t input, const diopiScalar_t* negative_slope, bool input_is_result) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& g, at::Tensor& x, at::Scalar s, bool of_result) {
        kernels::leaky_relu_backward_out(o, g, x, s, of_result);
    }, grad_input, grad_output, input, negative_slope, input_is_result);
}

diopiError_t diopiHardtanhBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                   diopiConstTensorHandle_t input, const diopiScalar_t* min_val, const diopiScalar_t* max_val) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& g, at::Tensor& x, at::Scalar low, at::Scalar high) {
        kernels::hardtanh_backward_out(o, g, x, low, high);
    }, grad_input, grad_output, input, min_val, max_val);
}
