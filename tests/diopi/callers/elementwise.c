#include "harness.h"

CALLER(diopiSub) {
    Tensor out = OUT(SIZE(3)), input = FLOATS(SIZE(3), 10, 20, 30), other = FLOATS(SIZE(3), 1, 2, 4);
    CALL(diopiSub(ctx, out, input, other, REAL(2)));
    EXPECT(out, 8, 16, 22);
}

CALLER(diopiAddScalar) {
    Tensor out = OUT(SIZE(2)), input = FLOATS(SIZE(2), 1, 2);
    CALL(diopiAddScalar(ctx, out, input, REAL(3), REAL(10)));
    EXPECT(out, 31, 32);
    CALL(diopiAddScalar(ctx, out, input, WHOLE(-3), WHOLE(1)));
    EXPECT(out, -2, -1);
}

CALLER(diopiDiv) {
    Tensor out = OUT(SIZE(3)), input = FLOATS(SIZE(3), 7, -7, 9), other = FLOATS(SIZE(3), 2, 2, -4);
    CALL(diopiDiv(ctx, out, input, other, RoundModeFloor));
    EXPECT(out, 3, -4, -3);
    CALL(diopiDiv(ctx, out, input, other, RoundModeTrunc));
    EXPECT(out, 3, -3, -2);
    CALL(diopiDiv(ctx, out, input, other, RoundModeNone));
    EXPECT(out, 3.5, -3.5, -2.25);
}

CALLER(diopiLerpTensor) {
    Tensor out = OUT(SIZE(2)), input = FLOATS(SIZE(2), 2, 10), end = FLOATS(SIZE(2), 4, 20), weight = FLOATS(SIZE(2), 0.25, 0.5);
    CALL(diopiLerpTensor(ctx, out, input, end, weight)); /* 2 + 0.25 * 2, 10 + 0.5 * 10 */
    EXPECT(out, 2.5, 15);
}

CALLER(diopiAddcmul) {
    Tensor out = OUT(SIZE(2)), input = FLOATS(SIZE(2), 1, 2), tensor1 = FLOATS(SIZE(2), 3, 5), tensor2 = FLOATS(SIZE(2), 7, 11);
    CALL(diopiAddcmul(ctx, out, input, tensor1, tensor2, REAL(2))); /* 1 + 2 * 21, 2 + 2 * 55 */
    EXPECT(out, 43, 112);
}

CALLER(diopiAddcdiv) {
    Tensor out = OUT(SIZE(2)), input = FLOATS(SIZE(2), 1, 2), tensor1 = FLOATS(SIZE(2), 8, 9), tensor2 = FLOATS(SIZE(2), 4, 3);
    CALL(diopiAddcdiv(ctx, out, input, tensor1, tensor2, REAL(3))); /* 1 + 3 * 2, 2 + 3 * 3 */
    EXPECT(out, 7, 11);
}

CALLER(diopiClampScalar) {
    Tensor out = OUT(SIZE(3)), input = FLOATS(SIZE(3), -5, 0.5, 5);
    CALL(diopiClampScalar(ctx, out, input, REAL(-1), REAL(2)));
    EXPECT(out, -1, 0.5, 2);
    CALL(diopiClampScalar(ctx, out, input, NULL, REAL(2)));
    EXPECT(out, -5, 0.5, 2);
}

CALLER(diopiClamp) {
    Tensor out = OUT(SIZE(3)), input = FLOATS(SIZE(3), -5, 0.5, 5), low = FLOATS(SIZE(3), -1, 1, -3), high = FLOATS(SIZE(3), 2, 3, 4);
    CALL(diopiClamp(ctx, out, input, low, high));
    EXPECT(out, -1, 1, 4);
}

CALLER(diopiHardtanh) {
    Tensor out = OUT(SIZE(3)), input = FLOATS(SIZE(3), -5, 0.5, 5);
    CALL(diopiHardtanh(ctx, out, input, REAL(-1), REAL(3)));
    EXPECT(out, -1, 0.5, 3);
}

CALLER(diopiThreshold) {
    Tensor out = OUT(SIZE(3)), input = FLOATS(SIZE(3), 1, 2, 3);
    CALL(diopiThreshold(ctx, out, input, REAL(2), REAL(7))); /* what is not above 2 becomes 7 */
    EXPECT(out, 7, 7, 3);
}

CALLER(diopiLeakyReluBackward) {
    Tensor out = OUT(SIZE(3)), grad = FLOATS(SIZE(3), 1, 2, -3), input = FLOATS(SIZE(3), -1, 4, 2);
    CALL(diopiLeakyReluBackward(ctx, out, grad, input, REAL(0.1), false));
    EXPECT(out, 0.1, 2, -3);
}

CALLER(diopiSigmoidBackward) {
    Tensor out = OUT(SIZE(2)), grad = FLOATS(SIZE(2), 2, 3), output = FLOATS(SIZE(2), 0.25, 0.5);
    CALL(diopiSigmoidBackward(ctx, out, grad, output)); /* grad * output * (1 - output) */
    EXPECT(out, 0.375, 0.75);
}

CALLER(diopiPowScalar) {
    Tensor out = OUT(SIZE(2)), exponent = FLOATS(SIZE(2), 3, 5);
    CALL(diopiPowScalar(ctx, out, REAL(2), exponent));
    EXPECT(out, 8, 32);
}

CALLER(diopiPowTensor) {
    Tensor out = OUT(SIZE(2)), input = FLOATS(SIZE(2), 2, 3), exponent = FLOATS(SIZE(2), 5, 2);
    CALL(diopiPowTensor(ctx, out, input, exponent));
    EXPECT(out, 32, 9);
}

CALLER(diopiRemainder) {
    Tensor out = OUT(SIZE(2)), other = FLOATS(SIZE(2), 4, -4);
    CALL(diopiRemainder(ctx, out, REAL(7), other)); /* the sign of the divisor */
    EXPECT(out, 3, -1);
}

CALLER(diopiRemainderTensor) {
    Tensor out = OUT(SIZE(3)), input = FLOATS(SIZE(3), 7, -7, 3), other = FLOATS(SIZE(3), 4, 4, 5);
    CALL(diopiRemainderTensor(ctx, out, input, other));
    EXPECT(out, 3, 1, 3);
}

CALLER(diopiWhere) {
    Tensor out = OUT(SIZE(3)), condition = BOOLS(SIZE(3), 1, 0, 1), input = FLOATS(SIZE(3), 1, 2, 3), other = FLOATS(SIZE(3), 10, 20, 30);
    CALL(diopiWhere(ctx, out, condition, input, other));
    EXPECT(out, 1, 20, 3);
}

CALLER(diopiMaskedFillScalar) {
    Tensor out = OUT(SIZE(3)), input = FLOATS(SIZE(3), 1, 2, 3), mask = BOOLS(SIZE(3), 0, 1, 1);
    CALL(diopiMaskedFillScalar(ctx, out, input, mask, REAL(-4)));
    EXPECT(out, 1, -4, -4);
}

CALLER(diopiLt) {
    Tensor out = OUT_OF(bool, SIZE(3)), input = FLOATS(SIZE(3), 1, 3, 2), other = FLOATS(SIZE(3), 2, 3, 1);
    CALL(diopiLt(ctx, out, input, other));
    EXPECT(out, 1, 0, 0);
}

CALLER(diopiPolar) {
    Tensor out = OUT_OF(complex64, SIZE(2)), length = FLOATS(SIZE(2), 2, 3), angle = FLOATS(SIZE(2), 0, 1.57079632679);
    CALL(diopiPolar(ctx, out, length, angle));
    EXPECT(out, 2, 0, 0, 3);
}

CALLER(diopiComplex) {
    Tensor out = OUT_OF(complex64, SIZE(2)), real = FLOATS(SIZE(2), 1, 2), imaginary = FLOATS(SIZE(2), 3, 4);
    CALL(diopiComplex(ctx, out, real, imaginary));
    EXPECT(out, 1, 3, 2, 4);
}

CALLER(diopiCopyInp) {
    Tensor source = FLOATS(SIZE(2), 1, 2), target = FLOATS(SIZE(2), 3, 4);
    CALL(diopiCopyInp(ctx, source, target));
    EXPECT(target, 1, 2);
    EXPECT(source, 1, 2);
}
