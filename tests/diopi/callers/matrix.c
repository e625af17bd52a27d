#include "harness.h"

CALLER(diopiAddmm) {
    Tensor out = OUT(SIZE(2, 2)), input = FLOATS(SIZE(2, 2), 1, 2, 3, 4);
    Tensor mat1 = FLOATS(SIZE(2, 3), 1, 2, 3, 4, 5, 6), mat2 = FLOATS(SIZE(3, 2), 1, 0, 0, 1, 1, 1);
    CALL(diopiAddmm(ctx, out, input, mat1, mat2, REAL(2), REAL(3))); /* 2 * input + 3 * [[4, 5], [10, 11]] */
    EXPECT(out, 14, 19, 36, 41);
}

CALLER(diopiBaddbmm) {
    Tensor out = OUT(SIZE(1, 2, 2)), input = FLOATS(SIZE(1, 2, 2), 10, 20, 30, 40);
    Tensor batch1 = FLOATS(SIZE(1, 2, 2), 1, 2, 3, 4), batch2 = FLOATS(SIZE(1, 2, 2), 0, 1, 2, 0);
    CALL(diopiBaddbmm(ctx, out, input, batch1, batch2, 0.5, 2)); /* 0.5 * input + 2 * [[4, 1], [8, 3]] */
    EXPECT(out, 13, 12, 31, 26);
}

CALLER(diopiMm) {
    Tensor out = OUT(SIZE(2, 2)), input = FLOATS(SIZE(2, 2), 1, 2, 3, 4), mat2 = FLOATS(SIZE(2, 2), 5, 6, 7, 8);
    CALL(diopiMm(ctx, out, input, mat2));
    EXPECT(out, 19, 22, 43, 50);
}

CALLER(diopiLinear) {
    Tensor out = OUT(SIZE(1, 3)), input = FLOATS(SIZE(1, 2), 1, 2);
    Tensor weight = FLOATS(SIZE(3, 2), 1, 0, 0, 1, 2, 3), bias = FLOATS(SIZE(3), 10, 20, 30);
    CALL(diopiLinear(ctx, out, input, weight, bias));
    EXPECT(out, 11, 22, 38);
}

CALLER(diopiLinearBackward) {
    Tensor grad_input = OUT(SIZE(1, 2)), grad_weight = OUT(SIZE(3, 2)), grad_bias = OUT(SIZE(3));
    Tensor grad = FLOATS(SIZE(1, 3), 1, 2, 3), input = FLOATS(SIZE(1, 2), 1, 2), weight = FLOATS(SIZE(3, 2), 1, 0, 0, 1, 2, 3);
    CALL(diopiLinearBackward(ctx, grad_input, grad_weight, grad_bias, grad, input, weight));
    EXPECT(grad_input, 7, 11);
    EXPECT(grad_weight, 1, 2, 2, 4, 3, 6);
    EXPECT(grad_bias, 1, 2, 3);
}

CALLER(diopiMatmulBackward) {
    Tensor grad_input = OUT(SIZE(2, 2)), grad_other = OUT(SIZE(2, 2)), grad = FLOATS(SIZE(2, 2), 1, 0, 0, 2);
    Tensor input = FLOATS(SIZE(2, 2), 1, 2, 3, 4), other = FLOATS(SIZE(2, 2), 5, 6, 7, 8);
    CALL(diopiMatmulBackward(ctx, grad_input, grad_other, grad, input, other));
    EXPECT(grad_input, 5, 7, 12, 16); /* grad times other transposed */
    EXPECT(grad_other, 1, 6, 2, 8);   /* input transposed times grad */
}

CALLER(diopiCdist) {
    Tensor out = OUT(SIZE(2, 1)), input1 = FLOATS(SIZE(2, 2), 0, 0, 1, 2), input2 = FLOATS(SIZE(1, 2), 3, 5);
    CALL(diopiCdist(ctx, out, input1, input2, 1, NULL));
    EXPECT(out, 8, 5);
}

CALLER(diopiTriangularSolve) {
    Tensor out = OUT(SIZE(2, 1)), cloned = OUT(SIZE(2, 2));
    Tensor b = FLOATS(SIZE(2, 1), 2, 11), mat = FLOATS(SIZE(2, 2), 2, 0, 3, 4);
    CALL(diopiTriangularSolve(ctx, out, cloned, b, mat, false, false, false)); /* 2 x = 2, 3 x + 4 y = 11 */
    EXPECT(out, 1, 2);
    CALL(diopiTriangularSolve(ctx, out, cloned, b, mat, false, true, false)); /* 4 y = 11, 2 x + 3 y = 2 */
    EXPECT(out, -3.125, 2.75);
    CALL(diopiTriangularSolve(ctx, out, cloned, b, mat, false, false, true)); /* x = 2, 3 x + y = 11 */
    EXPECT(out, 2, 5);
    CALL(diopiTriangularSolve(ctx, out, cloned, b, mat, true, false, false)); /* 4 y = 11, 2 x = 2 */
    EXPECT(out, 1, 2.75);
}
