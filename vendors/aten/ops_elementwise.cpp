// Element by element: arithmetic of two and three operands, powers, limits.
#include "chip.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include KERNELS(add)
#include KERNELS(addcdiv)
#include KERNELS(addcmul)
#include KERNELS(clamp)
#include KERNELS(clamp_max)
#include KERNELS(clamp_min)
#include KERNELS(div)
#include KERNELS(lerp)
#include KERNELS(maximum)
#include KERNELS(minimum)
#include KERNELS(mse_loss_backward)
#include KERNELS(mul)
#include <ATen/ops/ones.h>
#include KERNELS(pow)
#include KERNELS(remainder)
#include <ATen/ops/result_type.h>
#include KERNELS(sub)
#include <ATen/ops/where.h>

#include <limits>

#include "fast.h"
#include "kernel.h"

using namespace dipu_vendor;
using at::native::wrapped_scalar_tensor;

// Sums and differences: `alpha` scales the second operand.
#define ADDITIVE(Name, kernel, op)                                                                                              \
    static diopiError_t run##Name(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out,                          \
                                  diopiConstTensorHandle_t input, diopiConstTensorHandle_t other, const diopiScalar_t* alpha) { \
        if (is_one(alpha)) {                                                                                                    \
            if (auto done = flat(ctx, name, [](float x, float y) { return x op y; }, out, input, other)) return *done;          \
        }                                                                                                                       \
        return run(ctx, name, [](at::Tensor& o, at::Tensor& x, at::Tensor& y, at::Scalar a) { kernels::kernel(o, x, y, a); },   \
                   out, input, other, alpha);                                                                                   \
    }                                                                                                                           \
    static diopiError_t run##Name##Scalar(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out,                  \
                                          diopiConstTensorHandle_t input, const diopiScalar_t* other,                           \
                                          const diopiScalar_t* alpha) {                                                         \
        if (is_one(alpha)) {                                                                                                    \
            if (auto done = flat_with(ctx, name, [](float x, float y) { return x op y; }, out, input, other)) return *done;     \
        }                                                                                                                       \
        return run(ctx, name, [](at::Tensor& o, at::Tensor& x, at::Scalar y, at::Scalar a) {                                    \
            kernels::kernel(o, x, wrapped_scalar_tensor(y), a);                                                                 \
        }, out, input, other, alpha);                                                                                           \
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
    return run(ctx, name, [](at::Tensor& o, at::Tensor& x, at::Tensor& y) { kernels::mul_out(o, x, y); }, out, input, other);
}

static diopiError_t multiply(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                             const diopiScalar_t* other) {
    if (auto done = flat_with(ctx, name, [](float x, float y) { return x * y; }, out, input, other)) return *done;
    return run(ctx, name, [](at::Tensor& o, at::Tensor& x, at::Scalar y) { kernels::mul_out(o, x, wrapped_scalar_tensor(y)); }, out, input,
               other);
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

// The least integer divided by -1 has no result, and the processor stops the program for it. Divided by 1 it is itself, which is
// what the wrapped result would be.
static at::Tensor safe_divisor(const at::Tensor& x, const at::Tensor& y) {
    const auto type = at::result_type(x, y);
    if (!kKernelsNeedChecks || (type != at::kInt && type != at::kLong)) return y;
    const int64_t least = type == at::kInt ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int64_t>::min();
    const at::Tensor stops = x.eq(least).logical_and(y.eq(-1));
    return stops.any().item<bool>() ? at::where(stops, at::ones({}, y.options()), y) : y;
}

static void divide(at::Tensor& out, const at::Tensor& x, const at::Tensor& y, diopiRoundMode_t mode) {
    switch (mode) {
        case RoundModeNone: kernels::div_out(out, x, y); break;
        case RoundModeTrunc: kernels::div_out(out, x, safe_divisor(x, y), "trunc"); break;
        case RoundModeFloor: kernels::div_out(out, x, y, "floor"); break;
        default: TORCH_CHECK(false, "rounding mode ", static_cast<int>(mode), " is unknown");
    }
}

static diopiError_t divide(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                           diopiConstTensorHandle_t other, diopiRoundMode_t mode) {
    if (mode == RoundModeNone) {
        if (auto done = flat(ctx, name, [](float x, float y) { return x / y; }, out, input, other)) return *done;
    }
    return run(ctx, name, [](at::Tensor& o, at::Tensor& x, at::Tensor& y, diopiRoundMode_t m) { divide(o, x, y, m); }, out, input, other,
               mode);
}

static diopiError_t divide(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                           const diopiScalar_t* other, diopiRoundMode_t mode) {
    if (mode == RoundModeNone) {
        if (auto done = flat_with(ctx, name, [](float x, float y) { return x / y; }, out, input, other)) return *done;
    }
    return run(ctx, name, [](at::Tensor& o, at::Tensor& x, at::Scalar y, diopiRoundMode_t m) { divide(o, x, wrapped_scalar_tensor(y), m); },
               out, input, other, mode);
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

diopiError_t diopiRemainderTensor(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                                  diopiConstTensorHandle_t other) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, at::Tensor& y) { kernels::remainder_out(o, x, y); }, out, input, other);
}

diopiError_t diopiRemainderScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                                  const diopiScalar_t* other) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, at::Scalar y) { kernels::remainder_out(o, x, wrapped_scalar_tensor(y)); },
               out, input, other);
}

diopiError_t diopiRemainder(diopiContextHandle_t ctx, diopiTensorHandle_t out, const diopiScalar_t* input,
                            diopiConstTensorHandle_t other) {
    return run(ctx, __func__, [](at::Tensor& o, at::Scalar x, at::Tensor& y) { kernels::remainder_out(o, wrapped_scalar_tensor(x), y); },
               out, input, other);
}

#define BINARY(Name, kernel)                                                                                                           \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,                        \
                             diopiConstTensorHandle_t other) {                                                                         \
        return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, at::Tensor& y) { kernels::kernel(o, x, y); }, out, input, other);    \
    }

BINARY(Maximum, maximum_out)
BINARY(Minimum, minimum_out)
BINARY(PowTensor, pow_out)

diopiError_t diopiPowInpTensor(diopiContextHandle_t ctx, diopiTensorHandle_t input, diopiConstTensorHandle_t exponent) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, at::Tensor& e) { kernels::pow_out(o, x, e); }, input, input, exponent);
}

static diopiError_t power(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                          const diopiScalar_t* exponent) {
    return run(ctx, name, [](at::Tensor& o, at::Tensor& x, at::Scalar e) { kernels::pow_out(o, x, e); }, out, input, exponent);
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
    return run(ctx, __func__, [](at::Tensor& o, at::Scalar x, at::Tensor& e) { kernels::pow_out(o, x, e); }, out, input, exponent);
}

// input + value * tensor1 (* or /) tensor2.
#define ADDC(Name, kernel)                                                                                                     \
    static diopiError_t run##Name(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out,                         \
                                  diopiConstTensorHandle_t input, diopiConstTensorHandle_t tensor1,                            \
                                  diopiConstTensorHandle_t tensor2, const diopiScalar_t* value) {                              \
        return run(ctx, name, [](at::Tensor& o, at::Tensor& x, at::Tensor& a, at::Tensor& b, at::Scalar v) {                   \
            kernels::kernel(o, x, a, b, v);                                                                                    \
        }, out, input, tensor1, tensor2, value);                                                                               \
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
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, at::Tensor& y, at::Scalar w) { kernels::lerp_out(o, x, y, w); }, out, input,
               end, weight);
}

diopiError_t diopiLerpTensor(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                             diopiConstTensorHandle_t end, diopiConstTensorHandle_t weight) {
    return run(ctx, __func__, [](at::Tensor& o, at::Tensor& x, at::Tensor& y, at::Tensor& w) { kernels::lerp_out(o, x, y, w); }, out, input,
               end, weight);
}

// A limit is a number or a tensor. With both, either may be missing.
template <class Limit>
static diopiError_t clamp(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, diopiConstTensorHandle_t input, Limit min,
                          Limit max) {
    return run(ctx, name, [](at::Tensor& o, at::Tensor& x, auto& low, auto& high) { kernels::clamp_out(o, x, low, high); }, out, input,
               maybe(min), maybe(max));
}

#define CLAMP(suffix, Limit)                                                                                                   \
    diopiError_t diopiClamp##suffix(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,         \
                                    Limit min, Limit max) {                                                                    \
        return clamp<Limit>(ctx, __func__, out, input, min, max);                                                              \
    }                                                                                                                          \
    diopiError_t diopiClampInp##suffix(diopiContextHandle_t ctx, diopiTensorHandle_t input, Limit min, Limit max) {            \
        return clamp<Limit>(ctx, __func__, input, input, min, max);                                                            \
    }

CLAMP(, diopiConstTensorHandle_t)
CLAMP(Scalar, const diopiScalar_t*)

#define CLAMP_ONE_SIDE(Side, kernel, suffix, Limit)                                                                                   \
    static diopiError_t run##Side##suffix(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out,                        \
                                          diopiConstTensorHandle_t input, Limit limit) {                                              \
        return run(ctx, name, [](at::Tensor& o, at::Tensor& x, auto& l) { kernels::kernel(o, x, l); }, out, input, limit);            \
    }                                                                                                                                 \
    diopiError_t diopi##Side##suffix(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, Limit limit) { \
        return run##Side##suffix(ctx, __func__, out, input, limit);                                                                   \
    }                                                                                                                                 \
    diopiError_t diopi##Side##Inp##suffix(diopiContextHandle_t ctx, diopiTensorHandle_t input, Limit limit) {                         \
        return run##Side##suffix(ctx, __func__, input, input, limit);                                                                 \
    }

CLAMP_ONE_SIDE(ClampMin, clamp_min_out, , diopiConstTensorHandle_t)
CLAMP_ONE_SIDE(ClampMin, clamp_min_out, Scalar, const diopiScalar_t*)
CLAMP_ONE_SIDE(ClampMax, clamp_max_out, , diopiConstTensorHandle_t)
CLAMP_ONE_SIDE(ClampMax, clamp_max_out, Scalar, const diopiScalar_t*)

diopiError_t diopiMSELossBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                  diopiConstTensorHandle_t input, diopiConstTensorHandle_t target, diopiReduction_t reduction) {
    return LAUNCH(ctx, __func__, [o = view(grad_input), g = view(grad_output), x = view(input), t = view(target), reduction]() mutable {
                      kernels::mse_loss_backward_out(o, g, x, t, reduction);
                  });
}
