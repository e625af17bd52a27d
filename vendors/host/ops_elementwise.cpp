// Element by element: arithmetic, powers, activations and their gradients.
#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/abs_cpu_dispatch.h>
#include <ATen/ops/add_cpu_dispatch.h>
#include <ATen/ops/addcdiv_cpu_dispatch.h>
#include <ATen/ops/addcmul_cpu_dispatch.h>
#include <ATen/ops/ceil_cpu_dispatch.h>
#include <ATen/ops/clamp_cpu_dispatch.h>
#include <ATen/ops/clamp_max_cpu_dispatch.h>
#include <ATen/ops/clamp_min_cpu_dispatch.h>
#include <ATen/ops/cos_cpu_dispatch.h>
#include <ATen/ops/div_cpu_dispatch.h>
#include <ATen/ops/erf_cpu_dispatch.h>
#include <ATen/ops/exp_cpu_dispatch.h>
#include <ATen/ops/floor_cpu_dispatch.h>
#include <ATen/ops/gelu_backward_cpu_dispatch.h>
#include <ATen/ops/gelu_cpu_dispatch.h>
#include <ATen/ops/leaky_relu_backward_cpu_dispatch.h>
#include <ATen/ops/leaky_relu_cpu_dispatch.h>
#include <ATen/ops/lerp_cpu_dispatch.h>
#include <ATen/ops/log_cpu_dispatch.h>
#include <ATen/ops/maximum_cpu_dispatch.h>
#include <ATen/ops/minimum_cpu_dispatch.h>
#include <ATen/ops/mse_loss_backward_cpu_dispatch.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <ATen/ops/neg_cpu_dispatch.h>
#include <ATen/ops/pow_cpu_dispatch.h>
#include <ATen/ops/reciprocal_cpu_dispatch.h>
#include <ATen/ops/rsqrt_cpu_dispatch.h>
#include <ATen/ops/sigmoid_backward_cpu_dispatch.h>
#include <ATen/ops/sigmoid_cpu_dispatch.h>
#include <ATen/ops/silu_backward_cpu_dispatch.h>
#include <ATen/ops/silu_cpu_dispatch.h>
#include <ATen/ops/sin_cpu_dispatch.h>
#include <ATen/ops/sqrt_cpu_dispatch.h>
#include <ATen/ops/sub_cpu_dispatch.h>
#include <ATen/ops/tanh_backward_cpu_dispatch.h>
#include <ATen/ops/tanh_cpu_dispatch.h>
#include <ATen/ops/threshold_backward_cpu_dispatch.h>

#include "fast.h"
#include "kernel.h"

using namespace dipu_host;

// In place is the out form with its input as the output: one body, run##Name, serves both.
#define BOTH_FORMS(Name)                                                                                          \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) { \
        return run##Name(ctx, __func__, out, input);                                                              \
    }                                                                                                             \
    diopiError_t diopi##Name##Inp(diopiContextHandle_t ctx, diopiTensorHandle_t input) {                          \
        return run##Name(ctx, __func__, input, input);                                                            \
    }

#define UNARY(Name, kernel)                                                                              \
    static diopiError_t run##Name(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out,   \
                                  diopiConstTensorHandle_t input) {                                      \
        return LAUNCH(ctx, name, [o = view(out), x = view(input)]() mutable { at::cpu::kernel(o, x); }); \
    }                                                                                                    \
    BOTH_FORMS(Name)

// With a short way; `formula` is of a float x.
#define FLAT_UNARY(Name, long_way, formula)                                                                  \
    static diopiError_t run##Name(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out,       \
                                  diopiConstTensorHandle_t input) {                                          \
        if (auto done = flat(ctx, name, [](float x) -> float { return formula; }, out, input)) return *done; \
        return LAUNCH(ctx, name, [o = view(out), x = view(input)]() mutable { at::cpu::long_way; });         \
    }                                                                                                        \
    BOTH_FORMS(Name)

FLAT_UNARY(Neg, neg_out(o, x), -x)
FLAT_UNARY(Abs, abs_out(o, x), std::fabs(x))
FLAT_UNARY(Reciprocal, reciprocal_out(o, x), 1.0f / x)
FLAT_UNARY(Relu, clamp_min_out(o, x, at::Scalar(0)), x < 0.0f ? 0.0f : x)  // NaN and -0 pass, as in ATen
UNARY(Floor, floor_out)
UNARY(Ceil, ceil_out)
UNARY(Exp, exp_out)
UNARY(Log, log_out)
UNARY(Sqrt, sqrt_out)
UNARY(Rsqrt, rsqrt_out)
UNARY(Sin, sin_out)
UNARY(Cos, cos_out)
UNARY(Erf, erf_out)
UNARY(Tanh, tanh_out)
UNARY(Sigmoid, sigmoid_out)
UNARY(Silu, silu_out)

// Gradients of a pointwise function from grad_output and one other tensor.
#define BACKWARD(Name, kernel)                                                                                                 \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,   \
                             diopiConstTensorHandle_t saved) {                                                                 \
        return LAUNCH(ctx, __func__, \
                      [o = view(grad_input), g = view(grad_output), x = view(saved)]() mutable { at::cpu::kernel(o, g, x); }); \
    }

BACKWARD(TanhBackward, tanh_backward_out)
BACKWARD(SigmoidBackward, sigmoid_backward_out)
BACKWARD(SiluBackward, silu_backward_out)

diopiError_t diopiThresholdBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
                                    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
                                    const diopiScalar_t* threshold) {
    if (const auto limit = flat_scalar(threshold)) {
        const auto gate = [limit = *limit](float g, float x) { return x <= limit ? 0.0f : g; };
        if (auto done = flat(ctx, __func__, gate, grad_input, grad_output, input)) return *done;
    }
    return LAUNCH(ctx, __func__, [o = view(grad_input), g = view(grad_output), x = view(input), t = scalar(threshold)]() mutable {
        at::cpu::threshold_backward_out(o, g, x, t);
    });
}

diopiError_t diopiGelu(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                       const char* approximate) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), form = std::string(approximate)]() mutable { at::cpu::gelu_out(o, x, form); });
}

diopiError_t diopiGeluBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                               diopiConstTensorHandle_t input, const char* approximate) {
    return LAUNCH(ctx, __func__, [o = view(grad_input), g = view(grad_output), x = view(input), form = std::string(approximate)]() mutable {
                      at::cpu::gelu_backward_out(o, g, x, form);
                  });
}

static diopiError_t leaky_relu(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out,
                               diopiConstTensorHandle_t input, const diopiScalar_t* slope) {
    return LAUNCH(ctx, name, [o = view(out), x = view(input), s = scalar(slope)]() mutable { at::cpu::leaky_relu_out(o, x, s); });
}

diopiError_t diopiLeakyRelu(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                            const diopiScalar_t* negative_slope) {
    return leaky_relu(ctx, __func__, out, input, negative_slope);
}

diopiError_t diopiLeakyReluInp(diopiContextHandle_t ctx, diopiTensorHandle_t input, const diopiScalar_t* negative_slope) {
    return leaky_relu(ctx, __func__, input, input, negative_slope);
}

diopiError_t diopiLeakyReluBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input,
                                    diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
                                    const diopiScalar_t* negative_slope, bool input_is_result) {
    return LAUNCH(ctx, __func__, [o = view(grad_input), g = view(grad_output), x = view(input), s = scalar(negative_slope),
                   input_is_result]() mutable { at::cpu::leaky_relu_backward_out(o, g, x, s, input_is_result); });
}

// Sums and differences: `alpha` scales the second operand.
#define ADDITIVE(Name, kernel, op)                                                                                              \
    static diopiError_t run##Name(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out,                          \
                                  diopiConstTensorHandle_t input, diopiConstTensorHandle_t other, const diopiScalar_t* alpha) { \
        if (is_one(alpha)) {                                                                                                    \
            if (auto done = flat(ctx, name, [](float x, float y) { return x op y; }, out, input, other)) return *done;          \
        }                                                                                                                       \
        return LAUNCH(ctx, name, [o = view(out), x = view(input), y = view(other), a = scalar(alpha)]() mutable {               \
            at::cpu::kernel(o, x, y, a);                                                                                        \
        });                                                                                                                     \
    }                                                                                                                           \
    static diopiError_t run##Name##Scalar(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out,                  \
                                          diopiConstTensorHandle_t input, const diopiScalar_t* other,                           \
                                          const diopiScalar_t* alpha) {                                                         \
        if (is_one(alpha)) {                                                                                                    \
            if (auto done = flat_with(ctx, name, [](float x, float y) { return x op y; }, out, input, other)) return *done;     \
        }                                                                                                                       \
        return LAUNCH(ctx, name, [o = view(out), x = view(input), y = scalar(other), a = scalar(alpha)]() mutable {             \
            at::cpu::kernel(o, x, at::native::wrapped_scalar_tensor(y), a);                                                     \
        });                                                                                                                     \
    }                                                                                                                           \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,                 \
                             diopiConstTensorHandle_t other, const diopiScalar_t* alpha) {                                      \
        return run##Name(ctx, __func__, out, input, other, alpha);                                                              \
    }                                                                                                                           \
    diopiError_t diopi##Name##Inp(diopiContextHandle_t ctx, diopiTensorHandle_t input, diopiConstTensorHandle_t other,          \
                                  const diopiScalar_t* alpha) {                                                                 \
        return run##Name(ctx, __func__, input, input, other, alpha);                                                            \
    }                                                                                                                           \
    diopiError_t diopi##Name##Scalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,         \
                                     const diopiScalar_t* other, const diopiScalar_t* alpha) {                                  \
        return run##Name##Scalar(ctx, __func__, out, input, other, alpha);                                                      \
    }                                                                                                                           \
    diopiError_t diopi##Name##InpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input, const diopiScalar_t* other,        \
                                        const diopiScalar_t* alpha) {                                                           \
        return run##Name##Scalar(ctx, __func__, input, input, other, alpha);                                                    \
    }

ADDITIVE(Add, add_out, +)
ADDITIVE(Sub, sub_out, -)

static diopiError_t multiply(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                             diopiConstTensorHandle_t other) {
    if (auto done = flat(ctx, name, [](float x, float y) { return x * y; }, out, input, other)) return *done;
    return LAUNCH(ctx, name, [o = view(out), x = view(input), y = view(other)]() mutable { at::cpu::mul_out(o, x, y); });
}

static diopiError_t multiply(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                             const diopiScalar_t* other) {
    if (auto done = flat_with(ctx, name, [](float x, float y) { return x * y; }, out, input, other)) return *done;
    return LAUNCH(ctx, name, [o = view(out), x = view(input), y = scalar(other)]() mutable {
        at::cpu::mul_out(o, x, at::native::wrapped_scalar_tensor(y));
    });
}

diopiError_t diopiMul(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                      diopiConstTensorHandle_t other) {
    return multiply(ctx, __func__, out, input, other);
}

diopiError_t diopiMulInp(diopiContextHandle_t ctx, diopiTensorHandle_t input, diopiConstTensorHandle_t other) {
    return multiply(ctx, __func__, input, input, other);
}

diopiError_t diopiMulScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                            const diopiScalar_t* other) {
    return multiply(ctx, __func__, out, input, other);
}

diopiError_t diopiMulInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input, const diopiScalar_t* other) {
    return multiply(ctx, __func__, input, input, other);
}

static void divide(at::Tensor& out, const at::Tensor& x, const at::Tensor& y, diopiRoundMode_t mode) {
    if (mode == RoundModeNone) {
        at::cpu::div_out(out, x, y);
    } else {
        at::cpu::div_out(out, x, y, mode == RoundModeTrunc ? "trunc" : "floor");
    }
}

static diopiError_t divide(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                           diopiConstTensorHandle_t other, diopiRoundMode_t mode) {
    if (mode == RoundModeNone) {
        if (auto done = flat(ctx, name, [](float x, float y) { return x / y; }, out, input, other)) return *done;
    }
    return LAUNCH(ctx, name, [o = view(out), x = view(input), y = view(other), mode]() mutable { divide(o, x, y, mode); });
}

static diopiError_t divide(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                           const diopiScalar_t* other, diopiRoundMode_t mode) {
    if (mode == RoundModeNone) {
        if (auto done = flat_with(ctx, name, [](float x, float y) { return x / y; }, out, input, other)) return *done;
    }
    return LAUNCH(ctx, name, [o = view(out), x = view(input), y = scalar(other), mode]() mutable {
        divide(o, x, at::native::wrapped_scalar_tensor(y), mode);
    });
}

diopiError_t diopiDiv(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                      diopiConstTensorHandle_t other, diopiRoundMode_t rounding_mode) {
    return divide(ctx, __func__, out, input, other, rounding_mode);
}

diopiError_t diopiDivInp(diopiContextHandle_t ctx, diopiTensorHandle_t input, diopiConstTensorHandle_t other,
                         diopiRoundMode_t rounding_mode) {
    return divide(ctx, __func__, input, input, other, rounding_mode);
}

diopiError_t diopiDivScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                            const diopiScalar_t* other, diopiRoundMode_t rounding_mode) {
    return divide(ctx, __func__, out, input, other, rounding_mode);
}

diopiError_t diopiDivInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input, const diopiScalar_t* other,
                               diopiRoundMode_t rounding_mode) {
    return divide(ctx, __func__, input, input, other, rounding_mode);
}

#define BINARY(Name, kernel)                                                                                                     \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,                  \
                             diopiConstTensorHandle_t other) {                                                                   \
        return LAUNCH(ctx, __func__, [o = view(out), x = view(input), y = view(other)]() mutable { at::cpu::kernel(o, x, y); }); \
    }

BINARY(Maximum, maximum_out)
BINARY(Minimum, minimum_out)
BINARY(PowTensor, pow_out)

static diopiError_t power(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                          const diopiScalar_t* exponent) {
    return LAUNCH(ctx, name, [o = view(out), x = view(input), e = scalar(exponent)]() mutable { at::cpu::pow_out(o, x, e); });
}

diopiError_t diopiPow(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                      const diopiScalar_t* exponent) {
    return power(ctx, __func__, out, input, exponent);
}

diopiError_t diopiPowInp(diopiContextHandle_t ctx, diopiTensorHandle_t input, const diopiScalar_t* exponent) {
    return power(ctx, __func__, input, input, exponent);
}

diopiError_t diopiPowScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, const diopiScalar_t* input,
                            diopiConstTensorHandle_t exponent) {
    return LAUNCH(ctx, __func__, [o = view(out), x = scalar(input), e = view(exponent)]() mutable { at::cpu::pow_out(o, x, e); });
}

// input + value * tensor1 (* or /) tensor2.
#define ADDC(Name, kernel)                                                                                                     \
    static diopiError_t run##Name(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out,                         \
                                  diopiConstTensorHandle_t input, diopiConstTensorHandle_t tensor1,                            \
                                  diopiConstTensorHandle_t tensor2, const diopiScalar_t* value) {                              \
        return LAUNCH(ctx, name, \
                      [o = view(out), x = view(input), a = view(tensor1), b = view(tensor2), v = scalar(value)]() mutable {    \
                          at::cpu::kernel(o, x, a, b, v);                                                                      \
                      });                                                                                                      \
    }                                                                                                                          \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,                \
                             diopiConstTensorHandle_t tensor1, diopiConstTensorHandle_t tensor2, const diopiScalar_t* value) { \
        return run##Name(ctx, __func__, out, input, tensor1, tensor2, value);                                                  \
    }                                                                                                                          \
    diopiError_t diopi##Name##Inp(diopiContextHandle_t ctx, diopiTensorHandle_t input, diopiConstTensorHandle_t tensor1,       \
                                  diopiConstTensorHandle_t tensor2, const diopiScalar_t* value) {                              \
        return run##Name(ctx, __func__, input, input, tensor1, tensor2, value);                                                \
    }

ADDC(Addcmul, addcmul_out)
ADDC(Addcdiv, addcdiv_out)

diopiError_t diopiLerpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                             diopiConstTensorHandle_t end, const diopiScalar_t* weight) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), y = view(end), w = scalar(weight)]() mutable {
        at::cpu::lerp_out(o, x, y, w);
    });
}

diopiError_t diopiLerpTensor(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                             diopiConstTensorHandle_t end, diopiConstTensorHandle_t weight) {
    return LAUNCH(ctx, __func__, [o = view(out), x = view(input), y = view(end), w = view(weight)]() mutable { at::cpu::lerp_out(o, x, y, w); });
}

static diopiError_t clamp(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                          const diopiScalar_t* min, const diopiScalar_t* max) {
    return LAUNCH(ctx, name, [o = view(out), x = view(input), low = optional_scalar(min), high = optional_scalar(max)]() mutable {
        at::cpu::clamp_out(o, x, low, high);
    });
}

diopiError_t diopiClampScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                              const diopiScalar_t* min, const diopiScalar_t* max) {
    return clamp(ctx, __func__, out, input, min, max);
}

diopiError_t diopiClampInpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input, const diopiScalar_t* min,
                                 const diopiScalar_t* max) {
    return clamp(ctx, __func__, input, input, min, max);
}

#define CLAMP_ONE_SIDE(Name, kernel)                                                                                       \
    diopiError_t diopi##Name##Scalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,    \
                                     const diopiScalar_t* limit) {                                                         \
        return LAUNCH(ctx, __func__, \
                      [o = view(out), x = view(input), l = scalar(limit)]() mutable { at::cpu::kernel(o, x, l); });        \
    }                                                                                                                      \
    diopiError_t diopi##Name##InpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input, const diopiScalar_t* limit) { \
        return diopi##Name##Scalar(ctx, input, input, limit);                                                              \
    }

CLAMP_ONE_SIDE(ClampMin, clamp_min_out)
CLAMP_ONE_SIDE(ClampMax, clamp_max_out)

diopiError_t diopiMSELossBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                  diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, diopiReduction_t reduction) {
    return LAUNCH(ctx, __func__, [o = view(grad_input), g = view(grad_output), x = view(input), t = view(target), reduction]() mutable {
                      at::cpu::mse_loss_backward_out(o, g, x, t, reduction);
                  });
}
