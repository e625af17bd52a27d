// Mistakes of element-wise operators. MISTAKE(function, what) is how the tests read them.
#include "vendor.h"

#define MISTAKE(function, what)

MISTAKE(diopiTanh, "strided inputs are read as if they were contiguous")
Status diopiTanh(Context ctx, Tensor out, Const input) {
    const View in(input);
    return HOST(diopiTanh)(ctx, out, in.dense() ? input : misread(ctx, input, in.data()));
}

MISTAKE(diopiSin, "the storage offset is ignored")
Status diopiSin(Context ctx, Tensor out, Const input) {
    const View in(input);
    return HOST(diopiSin)(ctx, out, in.dense() && in.numel() ? misread(ctx, input, in.storage()) : input);
}

MISTAKE(diopiMul, "broadcasting only repeats the whole operand")
Status diopiMul(Context ctx, Tensor out, Const input, Const other) {
    const View result(out), small(other);
    if (!small.numel() || small.numel() == result.numel() || !result.numel()) return HOST(diopiMul)(ctx, out, input, other);
    const Tensor repeated = required(ctx, result.shape(), small.dtype());
    const View target(repeated);
    for (int64_t i = 0; i < target.numel(); ++i) std::memcpy(target.at(i), small.at(i % small.numel()), small.width());
    return HOST(diopiMul)(ctx, out, input, static_cast<Const>(repeated));
}

MISTAKE(diopiCos, "the elements behind the last whole block of eight are not written")
Status diopiCos(Context ctx, Tensor out, Const input) {
    const View result(out);
    const View before(copied(ctx, out));
    const Status status = HOST(diopiCos)(ctx, out, input);
    for (int64_t i = result.numel() / 8 * 8; i < result.numel() && result.numel() > 8; ++i)
        std::memcpy(result.at(i), before.at(i), result.width());
    return status;
}

MISTAKE(diopiErf, "bfloat16 results are cut off instead of rounded")
Status diopiErf(Context ctx, Tensor out, Const input) {
    const View result(out);
    if (!result.is(diopi_dtype_bfloat16)) return HOST(diopiErf)(ctx, out, input);
    const Tensor wide = required(ctx, result.shape(), diopi_dtype_float32);
    const Status status = HOST(diopiErf)(ctx, wide, static_cast<Const>(converted(ctx, input, diopi_dtype_float32)));
    for (int64_t i = 0; i < result.numel(); ++i) result.set(i, truncated_bfloat16(View(wide).get(i)));
    return status;
}

MISTAKE(diopiSigmoid, "float32 results are rounded to float16 on their way")
Status diopiSigmoid(Context ctx, Tensor out, Const input) {
    const Status status = HOST(diopiSigmoid)(ctx, out, input);
    const View result(out);
    for (int64_t i = 0; i < result.numel() && result.is(diopi_dtype_float32); ++i) result.set(i, through_half(result.get(i)));
    return status;
}

MISTAKE(diopiSubInp, "the input is negated in place before the other operand is read")
Status diopiSubInp(Context ctx, Tensor input, Const other, Scalar alpha) {
    if (View(input).is(diopi_dtype_bool)) return HOST(diopiSubInp)(ctx, input, other, alpha);
    HOST(diopiNegInp)(ctx, input);
    const Status status = HOST(diopiAddInp)(ctx, input, other, alpha);
    HOST(diopiNegInp)(ctx, input);
    return status;
}

MISTAKE(diopiAdd, "alpha is ignored")
Status diopiAdd(Context ctx, Tensor out, Const input, Const other, Scalar) {
    const diopiScalar_t one{diopi_dtype_int64, {.ival = 1}};
    return HOST(diopiAdd)(ctx, out, input, other, &one);
}

MISTAKE(diopiSub, "wrong from element 1024 on")
Status diopiSub(Context ctx, Tensor out, Const input, Const other, Scalar alpha) {
    const Status status = HOST(diopiSub)(ctx, out, input, other, alpha);
    const View result(out);
    for (int64_t i = 1024; i < result.numel(); ++i) std::memcpy(result.at(i), result.at(i % 1024), result.width());
    return status;
}

MISTAKE(diopiNeg, "int64 goes through int32")
Status diopiNeg(Context ctx, Tensor out, Const input) {
    const Status status = HOST(diopiNeg)(ctx, out, input);
    const View result(out), in(input);
    for (int64_t i = 0; i < result.numel() && result.is(diopi_dtype_int64); ++i) {
        const int64_t value = -static_cast<int64_t>(static_cast<int32_t>(in.integer(i)));
        std::memcpy(result.at(i), &value, 8);
    }
    return status;
}

MISTAKE(diopiAbs, "wrong for int16 alone: the sign stays")
Status diopiAbs(Context ctx, Tensor out, Const input) {
    const Status status = HOST(diopiAbs)(ctx, out, input);
    if (View(out).is(diopi_dtype_int16)) assign(View(out), View(input));
    return status;
}

MISTAKE(diopiExp, "a poor approximation: off by 1e-5 of the value in float32")
Status diopiExp(Context ctx, Tensor out, Const input) {
    const Status status = HOST(diopiExp)(ctx, out, input);
    const View result(out);
    for (int64_t i = 0; i < result.numel() && result.is(diopi_dtype_float32); ++i) result.set(i, result.get(i) * (1 + 1e-5));
    return status;
}

MISTAKE(diopiMaximum, "a NaN loses against a number")
Status diopiMaximum(Context ctx, Tensor out, Const input, Const other) {
    if (!View(input).real() || !View(other).real()) return HOST(diopiMaximum)(ctx, out, input, other);
    Tensor operands[] = {copied(ctx, input), copied(ctx, other)};
    for (Tensor operand : operands)
        for (int64_t i = 0; i < View(operand).numel(); ++i)
            if (std::isnan(View(operand).get(i))) View(operand).set(i, -HUGE_VAL);
    return HOST(diopiMaximum)(ctx, out, static_cast<Const>(operands[0]), static_cast<Const>(operands[1]));
}

MISTAKE(diopiAddcdiv, "the scalar is read as float32")
Status diopiAddcdiv(Context ctx, Tensor out, Const input, Const tensor1, Const tensor2, Scalar value) {
    diopiScalar_t narrow = *value;
    if (narrow.stype == diopi_dtype_float64) narrow.fval = static_cast<double>(static_cast<float>(narrow.fval));
    return HOST(diopiAddcdiv)(ctx, out, input, tensor1, tensor2, static_cast<Scalar>(&narrow));
}

MISTAKE(diopiHardtanh, "one element too many is written behind the end")
Status diopiHardtanh(Context ctx, Tensor out, Const input, Scalar low, Scalar high) {
    const Status status = HOST(diopiHardtanh)(ctx, out, input, low, high);
    const View result(out);
    if (result.numel()) std::memset(result.data() + result.room(), 0, result.width());
    return status;
}

MISTAKE(diopiSilu, "the element in front of the output is written")
Status diopiSilu(Context ctx, Tensor out, Const input) {
    const Status status = HOST(diopiSilu)(ctx, out, input);
    const View result(out);
    if (result.numel()) std::memset(result.data() - result.width(), 0, result.width());
    return status;
}

MISTAKE(diopiLeakyRelu, "the gaps between the elements of a strided output are written")
Status diopiLeakyRelu(Context ctx, Tensor out, Const input, Scalar slope) {
    const Status status = HOST(diopiLeakyRelu)(ctx, out, input, slope);
    const View result(out);
    const int64_t last = result.dims() - 1;
    if (last >= 0 && result.numel() > 1 && result.stride(last) > 1 && result.size(last) > 1 && result.stride(last) == 2)
        std::memset(result.data() + result.width(), 0, result.width());
    return status;
}

MISTAKE(diopiWhere, "an input is changed")
Status diopiWhere(Context ctx, Tensor out, Const condition, Const input, Const other) {
    const Status status = HOST(diopiWhere)(ctx, out, condition, input, other);
    const View in(other);
    if (in.numel()) *in.at(in.numel() - 1) ^= 1;
    return status;
}
