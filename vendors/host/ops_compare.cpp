// Comparisons and logic.
#include <ATen/core/Tensor.h>
#include <ATen/ops/bitwise_and_cpu_dispatch.h>
#include <ATen/ops/bitwise_not_cpu_dispatch.h>
#include <ATen/ops/bitwise_or_cpu_dispatch.h>
#include <ATen/ops/eq_cpu_dispatch.h>
#include <ATen/ops/ge_cpu_dispatch.h>
#include <ATen/ops/gt_cpu_dispatch.h>
#include <ATen/ops/le_cpu_dispatch.h>
#include <ATen/ops/logical_and_cpu_dispatch.h>
#include <ATen/ops/logical_not_cpu_dispatch.h>
#include <ATen/ops/logical_or_cpu_dispatch.h>
#include <ATen/ops/lt_cpu_dispatch.h>
#include <ATen/ops/ne_cpu_dispatch.h>

#include "fast.h"
#include "kernel.h"

using namespace dipu_host;

#define COMPARE(Name, kernel, op)                                                                                                \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,                  \
                             diopiConstTensorHandle_t other) {                                                                   \
        if (auto done = flat(ctx, __func__, [](float x, float y) { return x op y; }, out, input, other)) return *done;           \
        return LAUNCH(ctx, __func__, [o = view(out), x = view(input), y = view(other)]() mutable { at::cpu::kernel(o, x, y); }); \
    }                                                                                                                            \
    diopiError_t diopi##Name##Scalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,          \
                                     const diopiScalar_t* other) {                                                               \
        if (auto done = flat_with(ctx, __func__, [](float x, float y) { return x op y; }, out, input, other)) return *done;      \
        return LAUNCH(ctx, __func__, \
                      [o = view(out), x = view(input), y = scalar(other)]() mutable { at::cpu::kernel(o, x, y); });              \
    }

COMPARE(Eq, eq_out, ==)
COMPARE(Ne, ne_out, !=)
COMPARE(Ge, ge_out, >=)
COMPARE(Gt, gt_out, >)
COMPARE(Le, le_out, <=)
COMPARE(Lt, lt_out, <)

#define UNARY(Name, call)                                                                                         \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) { \
        return LAUNCH(ctx, __func__, [o = view(out), x = view(input)]() mutable { at::cpu::call; });              \
    }

#define BINARY(Name, call)                                                                                            \
    diopiError_t diopi##Name(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,       \
                             diopiConstTensorHandle_t other) {                                                        \
        return LAUNCH(ctx, __func__, [o = view(out), x = view(input), y = view(other)]() mutable { at::cpu::call; }); \
    }

UNARY(BitwiseNot, bitwise_not_out(o, x))
UNARY(LogicalNot, logical_not_out(o, x))
UNARY(IsNan, ne_out(o, x, x))
BINARY(BitwiseAnd, bitwise_and_out(o, x, y))
BINARY(BitwiseOr, bitwise_or_out(o, x, y))
BINARY(LogicalAnd, logical_and_out(o, x, y))
BINARY(LogicalOr, logical_or_out(o, x, y))
