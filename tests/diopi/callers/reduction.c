#include "harness.h"

CALLER(diopiProd) {
    Tensor out = OUT(SIZE(3)), input = FLOATS(SIZE(2, 3), 1, 2, 3, 4, 5, 6);
    CALL(diopiProd(ctx, out, input, &(int64_t){0}));
    EXPECT(out, 4, 10, 18);
}

CALLER(diopiStd) {
    Tensor out = OUT(SIZE(2)), input = FLOATS(SIZE(2, 2), 1, 3, 5, 11);
    CALL(diopiStd(ctx, out, input, SIZE(1), REAL(1)));
    EXPECT(out, 1.41421356, 4.24264069);
    CALL(diopiStd(ctx, out, input, SIZE(0), REAL(0)));
    EXPECT(out, 2, 4);
}

CALLER(diopiNorm) {
    Tensor out = OUT(SIZE(1)), input = FLOATS(SIZE(1, 3), 3, -4, 5);
    CALL(diopiNorm(ctx, out, input, REAL(3), SIZE(1))); /* 27 + 64 + 125 = 6 to the third */
    EXPECT(out, 6);
}

CALLER(diopiCumsum) {
    Tensor out = OUT(SIZE(2, 2)), input = FLOATS(SIZE(2, 2), 1, 2, 3, 4);
    CALL(diopiCumsum(ctx, out, input, 0));
    EXPECT(out, 1, 2, 4, 6);
    CALL(diopiCumsum(ctx, out, input, -1));
    EXPECT(out, 1, 3, 3, 7);
}

CALLER(diopiMax) {
    Tensor values = OUT(SIZE(2)), indices = OUT_OF(int64, SIZE(2)), input = FLOATS(SIZE(2, 2), 1, 9, 8, 4);
    CALL(diopiMax(ctx, values, indices, input, 1));
    EXPECT(values, 9, 8);
    EXPECT(indices, 1, 0);
}

CALLER(diopiArgmin) {
    Tensor out = OUT_OF(int64, SIZE(1, 3)), input = FLOATS(SIZE(2, 3), 1, 9, 3, 8, 4, 6);
    CALL(diopiArgmin(ctx, out, input, &(int64_t){0}, true));
    EXPECT(out, 0, 1, 0);
}

CALLER(diopiAmax) {
    Tensor out = OUT(SIZE(1, 3)), input = FLOATS(SIZE(2, 3), 1, 9, 3, 8, 4, 6);
    CALL(diopiAmax(ctx, out, input, SIZE(0), true));
    EXPECT(out, 8, 9, 6);
}

CALLER(diopiSoftmax) {
    Tensor out = OUT(SIZE(2, 2)), input = FLOATS(SIZE(2, 2), 0, 5, 1.09861229, 5);
    CALL(diopiSoftmax(ctx, out, input, 0)); /* 1 : 3, and 1 : 1 */
    EXPECT(out, 0.25, 0.5, 0.75, 0.5);
}

CALLER(diopiSoftmaxBackward) {
    Tensor out = OUT(SIZE(1, 2)), grad = FLOATS(SIZE(1, 2), 4, 8), output = FLOATS(SIZE(1, 2), 0.25, 0.75);
    CALL(diopiSoftmaxBackward(ctx, out, grad, output, 1)); /* output * (grad - 7) */
    EXPECT(out, -0.75, 0.75);
}

CALLER(diopiLinalgVecNorm) {
    Tensor out = OUT(SIZE(2, 1)), input = FLOATS(SIZE(2, 2), 3, -4, 6, 1);
    CALL(diopiLinalgVecNorm(ctx, out, input, REAL(1), SIZE(1), true));
    EXPECT(out, 7, 7);
    CALL(diopiLinalgVecNorm(ctx, out, input, REAL(2), SIZE(1), true));
    EXPECT(out, 5, 6.08276253);
}
