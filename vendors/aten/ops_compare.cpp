// Comparisons and logic.
#include "chip.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include KERNELS(bitwise_and)
#include KERNELS(bitwise_not)
#include KERNELS(bitwise_or)
#include KERNELS(eq)
#include KERNELS(equal)
#include KERNELS(ge)
#include KERNELS(gt)
#include KERNELS(le)
#include KERNELS(logical_and)
#include KERNELS(logical_not)
#include KERNELS(logical_or)
#include KERNELS(lt)
#include KERNELS(ne)

#include "fast.h"
#include "kernel.h"

using namespace dipu_vendor;
using at::native::wrapped_scalar_tensor;

#define COMPARE(Name, kernel, op)                                                                                               \
    static diopiError_t run##Name(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out,                          \
                                  diopiConstTensorHandle_t input, diopiConstTensorHandle_t other) {                             \
        if (auto done = flat(ctx, name, [](float x, float y) { return x op y; }, out, input, other)) return *done;              \
        return run(ctx, name, [](at::Tensor& o, at::Tensor& x, at::Tensor& y) { kernels::kernel(o, x, y); }, out, input, other); \
    }                                                                                                                           \
    static diopiError_t run##Name(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out,                          \
                                  diopiConstTensorHandle_t input, const diopiScalar_t* other) {                                 \
        if (auto done = flat_with(ctx, name, [](float x, float y) { return x op y; }, out, input, other)) return *done;         \
        return run(ctx, name, [](at::Tensor& o, at::Tensor& x, at::Scalar y) { kernels::kernel(o, x, y); }, out, input, other);  \
    }                                                                                                                           \
    BINARY_FORMS(Name)                                                                                                          \
    SCALAR_FORMS(Name)

#define BINARY_FORMS(Name)                                                                                                   \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,              \
                             diopiConstTensorHandle_t other) {                                                               \
        return run##Name(ctx, __func__, out, input, other);                                                                  \
    }                                                                                                                        \
    diopiError_t diopi##Name##Inp(diopiContextHandle_t ctx, diopiTensorHandle_t input, diopiConstTensorHandle_t other) {     \
        return run##Name(ctx, __func__, input, input, other);                                                                \
    }

#define SCALAR_FORMS(Name)                                                                                                   \
    diopiError_t diopi##Name##Scalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,      \
                                     const diopiScalar_t* other) {                                                           \
        return run##Name(ctx, __func__, out, input, other);                                                                  \
    }                                                                                                                        \
    diopiError_t diopi##Name##InpScalar(diopiContextHandle_t ctx, diopiTensorHandle_t input, const diopiScalar_t* other) {   \
        return run##Name(ctx, __func__, input, input, other);                                                                \
    }

COMPARE(Eq, eq_out, ==)
COMPARE(Ne, ne_out, !=)
COMPARE(Ge, ge_out, >=)
COMPARE(Gt, gt_out, >)
COMPARE(Le, le_out, <=)
COMPARE(Lt, lt_out, <)

#define UNARY_BODY(Name, call)                                                                         \
    static diopiError_t run##Name(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out, \
                                  diopiConstTensorHandle_t input) {                                    \
        return run(ctx, name, [](at::Tensor& o, at::Tensor& x) { kernels::call; }, out, input);        \
    }                                                                                                  \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) { \
        return run##Name(ctx, __func__, out, input);                                                   \
    }

#define UNARY(Name, call)                                                                \
    UNARY_BODY(Name, call)                                                               \
    diopiError_t diopi##Name##Inp(diopiContextHandle_t ctx, diopiTensorHandle_t input) { \
        return run##Name(ctx, __func__, input, input);                                   \
    }

#define BINARY(Name, call)                                                                                                \
    static diopiError_t run##Name(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out,                    \
                                  diopiConstTensorHandle_t input, diopiConstTensorHandle_t other) {                       \
        return run(ctx, name, [](at::Tensor& o, at::Tensor& x, at::Tensor& y) { kernels::call; }, out, input, other);     \
    }                                                                                                                     \
    BINARY_FORMS(Name)

#define BITWISE(Name, kernel)                                                                                             \
    BINARY(Name, kernel(o, x, y))                                                                                         \
    static diopiError_t run##Name(diopiContextHandle_t ctx, const char* name, diopiTensorHandle_t out,                    \
                                  diopiConstTensorHandle_t input, const diopiScalar_t* other) {                           \
        return run(ctx, name, [](at::Tensor& o, at::Tensor& x, at::Scalar y) { kernels::kernel(o, x, wrapped_scalar_tensor(y)); }, \
                   out, input, other);                                                                                    \
    }                                                                                                                     \
    SCALAR_FORMS(Name)

UNARY(BitwiseNot, bitwise_not_out(o, x))
UNARY(LogicalNot, logical_not_out(o, x))
UNARY_BODY(IsNan, ne_out(o, x, x))
BITWISE(BitwiseAnd, bitwise_and_out)
BITWISE(BitwiseOr, bitwise_or_out)
BINARY(LogicalAnd, logical_and_out(o, x, y))
BINARY(LogicalOr, logical_or_out(o, x, y))

diopiError_t diopiEqual(diopiContextHandle_t ctx, bool* out, diopiConstTensorHandle_t input, diopiConstTensorHandle_t other) {
    return run_now(ctx, __func__, [&] {
        TORCH_CHECK(out, "the pointer for the answer is NULL");
        *out = kernels::equal(view(input), view(other));
    });
}
