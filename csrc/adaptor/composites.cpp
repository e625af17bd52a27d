// Operators made of others, for a library that lacks them. The parts are asked for like any operator, so their rules apply.
#include <diopi/functions.h>

#include <cmath>
#include <cstring>

#include "operators.h"
#include "steps.h"

namespace adaptor {
namespace {

diopiScalar_t whole(int64_t value) {
    diopiScalar_t number{};
    number.stype = diopi_dtype_int64;
    number.ival = value;
    return number;
}

// An integer where the value is one: integer tensors take no other.
diopiScalar_t real(double value) {
    if (std::abs(value) < 9e15 && value == std::floor(value)) return whole(static_cast<int64_t>(value));
    diopiScalar_t number{};
    number.stype = diopi_dtype_float64;
    number.fval = value;
    return number;
}

double value_of(const diopiScalar_t* number) {
    if (!number) return 1;
    const bool integral = number->stype <= diopi_dtype_uint64;
    return integral ? static_cast<double>(number->ival) : number->fval;
}

#define RUN(part, ...) run<decltype(&::part)>(#part, __VA_ARGS__)

// beta * input + alpha * product. With beta 0 the input does not count, not even its NaN.
void weighted(Steps& steps, Out out, In input, In product, double beta, double alpha) {
    const diopiScalar_t of_input = real(beta), of_product = real(alpha);
    if (beta == 0) return steps.RUN(diopiMulScalar, out, product, &of_product);
    if (beta != 1) {
        Out scaled = steps.fresh(input);
        steps.RUN(diopiMulScalar, scaled, input, &of_input);
        input = scaled;
    }
    steps.RUN(diopiAdd, out, input, product, &of_product);
}

diopiError_t Addmm(diopiContextHandle_t ctx, Out out, In input, In mat1, In mat2, const diopiScalar_t* beta, const diopiScalar_t* alpha) {
    Steps steps(ctx, "diopiAddmm");
    input = steps.upcast(input);
    mat1 = steps.upcast(mat1);
    mat2 = steps.upcast(mat2);
    out = steps.target(out);
    Out product = steps.fresh(out);
    steps.RUN(diopiMm, product, mat1, mat2);
    weighted(steps, out, input, product, value_of(beta), value_of(alpha));
    return steps.finish();
}

void baddbmm(Steps& steps, Out out, In input, In batch1, In batch2, double beta, double alpha) {
    Out product = steps.fresh(out);
    steps.RUN(diopiBmm, product, steps.upcast(batch1), steps.upcast(batch2));
    weighted(steps, out, steps.upcast(input), product, beta, alpha);
}

diopiError_t Baddbmm(diopiContextHandle_t ctx, Out out, In input, In batch1, In batch2, double beta, double alpha) {
    Steps steps(ctx, "diopiBaddbmm");
    baddbmm(steps, steps.target(out), input, batch1, batch2, beta, alpha);
    return steps.finish();
}

diopiError_t BaddbmmInp(diopiContextHandle_t ctx, Out input, In batch1, In batch2, double beta, double alpha) {
    Steps steps(ctx, "diopiBaddbmmInp");
    Out result = steps.fresh(steps.upcast(input));
    baddbmm(steps, result, input, batch1, batch2, beta, alpha);
    return steps.assign(input, result);
}

diopiError_t Linear(diopiContextHandle_t ctx, Out out, In input, In weight, In bias) {
    Steps steps(ctx, "diopiLinear");
    input = steps.upcast(input);
    weight = steps.upcast(weight);
    bias = steps.upcast(bias);
    out = steps.target(out);
    Tensor matrix;
    if (steps.read(weight, matrix) && matrix.shape.size() != 2) steps.unsupported();
    if (steps.status() != diopiSuccess) return steps.status();
    static const int64_t swapped[] = {1, 0};
    const diopiScalar_t one = whole(1);
    Out turned = steps.fresh({matrix.shape[1], matrix.shape[0]}, weight);
    Out product = bias ? steps.fresh(out) : out;
    steps.RUN(diopiPermute, turned, weight, diopiSize_t{swapped, 2});
    steps.RUN(diopiMatmul, product, input, static_cast<In>(turned));
    if (bias) steps.RUN(diopiAdd, out, static_cast<In>(product), bias, &one);
    return steps.finish();
}

// value * tensor1 * tensor2, in this order: with a small value the product of two large tensors does not overflow
Out scaled_product(Steps& steps, In tensor1, In tensor2, const diopiScalar_t* value, In like) {
    Out product = steps.fresh(tensor1, tensor2, like);
    if (value_of(value) != 1) {
        Out scaled = steps.fresh(tensor1);
        steps.RUN(diopiMulScalar, scaled, tensor1, value);
        tensor1 = scaled;
    }
    steps.RUN(diopiMul, product, tensor1, tensor2);
    return product;
}

void addcmul(Steps& steps, Out out, In input, In tensor1, In tensor2, const diopiScalar_t* value) {
    const diopiScalar_t one = whole(1);
    In product = scaled_product(steps, steps.upcast(tensor1), steps.upcast(tensor2), value, out);
    steps.RUN(diopiAdd, out, steps.upcast(input), product, &one);
}

diopiError_t Addcmul(diopiContextHandle_t ctx, Out out, In input, In tensor1, In tensor2, const diopiScalar_t* value) {
    Steps steps(ctx, "diopiAddcmul");
    addcmul(steps, steps.target(out), input, tensor1, tensor2, value);
    return steps.finish();
}

diopiError_t AddcmulInp(diopiContextHandle_t ctx, Out input, In tensor1, In tensor2, const diopiScalar_t* value) {
    Steps steps(ctx, "diopiAddcmulInp");
    Out result = steps.fresh(steps.upcast(input));
    addcmul(steps, result, input, tensor1, tensor2, value);
    return steps.assign(input, result);
}

void addcdiv(Steps& steps, Out out, In input, In tensor1, In tensor2, const diopiScalar_t* value) {
    tensor1 = steps.upcast(tensor1);
    tensor2 = steps.upcast(tensor2);
    Out quotient = steps.fresh(tensor1, tensor2, out);
    steps.RUN(diopiDiv, quotient, tensor1, tensor2, RoundModeNone);
    steps.RUN(diopiAdd, out, steps.upcast(input), static_cast<In>(quotient), value);
}

diopiError_t Addcdiv(diopiContextHandle_t ctx, Out out, In input, In tensor1, In tensor2, const diopiScalar_t* value) {
    Steps steps(ctx, "diopiAddcdiv");
    addcdiv(steps, steps.target(out), input, tensor1, tensor2, value);
    return steps.finish();
}

diopiError_t AddcdivInp(diopiContextHandle_t ctx, Out input, In tensor1, In tensor2, const diopiScalar_t* value) {
    Steps steps(ctx, "diopiAddcdivInp");
    Out result = steps.fresh(steps.upcast(input));
    addcdiv(steps, result, input, tensor1, tensor2, value);
    return steps.assign(input, result);
}

void silu(Steps& steps, Out out, In input) {
    input = steps.upcast(input);
    Out gate = steps.fresh(input);
    steps.RUN(diopiSigmoid, gate, input);
    steps.RUN(diopiMul, out, input, static_cast<In>(gate));
}

diopiError_t Silu(diopiContextHandle_t ctx, Out out, In input) {
    Steps steps(ctx, "diopiSilu");
    silu(steps, steps.target(out), input);
    return steps.finish();
}

diopiError_t SiluInp(diopiContextHandle_t ctx, Out input) {
    Steps steps(ctx, "diopiSiluInp");
    Out result = steps.fresh(steps.upcast(input));
    silu(steps, result, input);
    return steps.assign(input, result);
}

// 1 - x
Out complement(Steps& steps, In x) {
    const diopiScalar_t minus = whole(-1), one = whole(1);
    Out negative = steps.fresh(x), result = steps.fresh(x);
    steps.RUN(diopiMulScalar, negative, x, &minus);
    steps.RUN(diopiAddScalar, result, static_cast<In>(negative), &one, &one);
    return result;
}

// The gradient of complex numbers needs the conjugate, for which there is no operator.
void refuse_complex(Steps& steps, In x) {
    Tensor given;
    if (steps.read(x, given) && given.dtype >= diopi_dtype_complex32) steps.unsupported();
}

Out product(Steps& steps, In a, In b) {
    Out result = steps.fresh(a);
    steps.RUN(diopiMul, result, a, b);
    return result;
}

// grad * (s + x * s * (1 - s)), s the sigmoid of x
diopiError_t SiluBackward(diopiContextHandle_t ctx, Out grad_input, In grad_output, In input) {
    Steps steps(ctx, "diopiSiluBackward");
    grad_output = steps.upcast(grad_output);
    input = steps.upcast(input);
    grad_input = steps.target(grad_input);
    const diopiScalar_t one = whole(1);
    Out gate = steps.fresh(input), slope = steps.fresh(input);
    steps.RUN(diopiSigmoid, gate, input);
    Out curved = product(steps, product(steps, input, gate), complement(steps, gate));
    steps.RUN(diopiAdd, slope, static_cast<In>(gate), static_cast<In>(curved), &one);
    steps.RUN(diopiMul, grad_input, grad_output, static_cast<In>(slope));
    return steps.finish();
}

// grad * slope, where the slope is a function of the output
diopiError_t chained(diopiContextHandle_t ctx, const char* name, Out grad_input, In grad_output, In output, Out (*slope)(Steps&, In)) {
    Steps steps(ctx, name);
    refuse_complex(steps, output);
    grad_output = steps.upcast(grad_output);
    output = steps.upcast(output);
    grad_input = steps.target(grad_input);
    steps.RUN(diopiMul, grad_input, grad_output, static_cast<In>(slope(steps, output)));
    return steps.finish();
}

diopiError_t SigmoidBackward(diopiContextHandle_t ctx, Out grad_input, In grad_output, In output) {
    return chained(ctx, "diopiSigmoidBackward", grad_input, grad_output, output,
                   [](Steps& steps, In s) { return product(steps, s, complement(steps, s)); });
}

diopiError_t TanhBackward(diopiContextHandle_t ctx, Out grad_input, In grad_output, In output) {
    return chained(ctx, "diopiTanhBackward", grad_input, grad_output, output,
                   [](Steps& steps, In t) { return complement(steps, product(steps, t, t)); });
}

diopiError_t Rsqrt(diopiContextHandle_t ctx, Out out, In input) {
    Steps steps(ctx, "diopiRsqrt");
    input = steps.upcast(input);
    out = steps.target(out);
    Out root = steps.fresh(out);
    steps.RUN(diopiSqrt, root, input);
    steps.RUN(diopiReciprocal, out, static_cast<In>(root));
    return steps.finish();
}

diopiError_t LerpScalar(diopiContextHandle_t ctx, Out out, In input, In end, const diopiScalar_t* weight) {
    Steps steps(ctx, "diopiLerpScalar");
    input = steps.upcast(input);
    end = steps.upcast(end);
    out = steps.target(out);
    const diopiScalar_t one = whole(1);
    Out way = steps.fresh(end, input, out);
    steps.RUN(diopiSub, way, end, input, &one);
    // from the nearer end, so that weight 1 gives the end itself
    const double part = value_of(weight);
    const diopiScalar_t step = real(std::abs(part) < 0.5 ? part : part - 1);
    steps.RUN(diopiAdd, out, std::abs(part) < 0.5 ? input : end, static_cast<In>(way), &step);
    return steps.finish();
}

diopiError_t Neg(diopiContextHandle_t ctx, Out out, In input) {
    Steps steps(ctx, "diopiNeg");
    const diopiScalar_t minus = whole(-1);
    steps.RUN(diopiMulScalar, out, input, &minus);
    return steps.finish();
}

// The same function with nothing thrown through the C interface.
template <auto function>
struct Guarded;
template <typename... Arguments, diopiError_t (*function)(Arguments...)>
struct Guarded<function> {
    static diopiError_t call(Arguments... arguments) try {
        return function(arguments...);
    } catch (...) {
        return thrown("an operator composed of others");
    }
};

#define COMPOSITE(name, ...) \
    {"diopi" #name, reinterpret_cast<void*>(&Guarded<static_cast<decltype(&::diopi##name)>(&name)>::call), {__VA_ARGS__}}

const Composite composites[] = {
    COMPOSITE(Addmm, "diopiMm", "diopiMulScalar", "diopiAdd"),
    COMPOSITE(Baddbmm, "diopiBmm", "diopiMulScalar", "diopiAdd"),
    COMPOSITE(BaddbmmInp, "diopiBmm", "diopiMulScalar", "diopiAdd"),
    COMPOSITE(Linear, "diopiPermute", "diopiMatmul", "diopiAdd"),
    COMPOSITE(Addcmul, "diopiMulScalar", "diopiMul", "diopiAdd"),
    COMPOSITE(AddcmulInp, "diopiMulScalar", "diopiMul", "diopiAdd"),
    COMPOSITE(Addcdiv, "diopiDiv", "diopiAdd"),
    COMPOSITE(AddcdivInp, "diopiDiv", "diopiAdd"),
    COMPOSITE(Silu, "diopiSigmoid", "diopiMul"),
    COMPOSITE(SiluInp, "diopiSigmoid", "diopiMul"),
    COMPOSITE(SiluBackward, "diopiSigmoid", "diopiMulScalar", "diopiAddScalar", "diopiMul", "diopiAdd"),
    COMPOSITE(SigmoidBackward, "diopiMulScalar", "diopiAddScalar", "diopiMul"),
    COMPOSITE(TanhBackward, "diopiMulScalar", "diopiAddScalar", "diopiMul"),
    COMPOSITE(Rsqrt, "diopiSqrt", "diopiReciprocal"),
    COMPOSITE(LerpScalar, "diopiSub", "diopiAdd"),
    COMPOSITE(Neg, "diopiMulScalar"),
};

}  // namespace

const Composite* composite_named(const char* name) {
    for (const Composite& composite : composites)
        if (std::strcmp(composite.name, name) == 0) return &composite;
    return nullptr;
}

}  // namespace adaptor
