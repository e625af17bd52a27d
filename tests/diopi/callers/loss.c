#include "harness.h"

CALLER(diopiNLLLoss) {
    Tensor out = OUT(NONE), input = FLOATS(SIZE(3, 3), -1, -2, -3, -4, -5, -6, -7, -8, -9);
    Tensor target = INT64S(SIZE(3), 0, 2, 1), weight = FLOATS(SIZE(3), 1, 2, 3);
    CALL(diopiNLLLoss(ctx, out, input, target, weight, ReductionMean, 1)); /* (1 * 1 + 3 * 6) / (1 + 3) */
    EXPECT(out, 4.75);
    CALL(diopiNLLLoss(ctx, out, input, target, weight, ReductionSum, -100)); /* 1 + 18 + 2 * 8 */
    EXPECT(out, 35);
}

CALLER(diopiSmoothL1Loss) {
    Tensor out = OUT(NONE), input = FLOATS(SIZE(2), 1, 5), target = FLOATS(SIZE(2), 0, 0);
    CALL(diopiSmoothL1Loss(ctx, out, input, target, ReductionSum, 2)); /* 0.5 * 1 / 2, 5 - 0.5 * 2 */
    EXPECT(out, 4.25);
    CALL(diopiSmoothL1Loss(ctx, out, input, target, ReductionMean, 2));
    EXPECT(out, 2.125);
}

CALLER(diopiSmoothL1LossBackward) {
    Tensor out = OUT(SIZE(2)), grad = FLOATS(SIZE(2), 10, 100), input = FLOATS(SIZE(2), 1, 5), target = FLOATS(SIZE(2), 0, 9);
    CALL(diopiSmoothL1LossBackward(ctx, out, grad, input, target, ReductionNone, 2)); /* (1 - 0) / 2, and -1 */
    EXPECT(out, 5, -100);
}

CALLER(diopiCrossEntropyLoss) {
    /* the logarithms of 1/4 and 3/4: -1.38629436 and -0.28768207; the second row is ignored */
    Tensor out = OUT(NONE), input = FLOATS(SIZE(2, 2), 0, 1.09861229, 5, 6), target = INT64S(SIZE(2), 1, 0), weight = FLOATS(SIZE(2), 2, 5);
    CALL(diopiCrossEntropyLoss(ctx, out, input, target, weight, ReductionSum, 0, 0.2));
    EXPECT(out, 1.57182818); /* 0.8 * 5 * 0.28768207 + 0.1 * (2 * 1.38629436 + 5 * 0.28768207) */
}

CALLER(diopiBCEWithLogits) {
    Tensor out = OUT(NONE), input = FLOATS(SIZE(2), 0, 1.09861229), target = FLOATS(SIZE(2), 1, 0);
    Tensor weight = FLOATS(SIZE(2), 2, 3), pos_weight = FLOATS(SIZE(2), 5, 7);
    CALL(diopiBCEWithLogits(ctx, out, input, target, weight, pos_weight, ReductionSum)); /* 2 * 5 * ln 2 + 3 * ln 4 */
    EXPECT(out, 11.09035489);
}

CALLER(diopiBCELoss) {
    Tensor out = OUT(NONE), input = FLOATS(SIZE(2), 0.5, 0.75), target = FLOATS(SIZE(2), 1, 0), weight = FLOATS(SIZE(2), 2, 4);
    CALL(diopiBCELoss(ctx, out, input, target, weight, ReductionSum)); /* 2 * ln 2 + 4 * ln 4 */
    EXPECT(out, 6.93147181);
}

CALLER(diopiSigmoidFocalLoss) {
    /* 0.25 * 0.5^2 * ln 2 + 0.75 * 0.75^2 * ln 4 */
    Tensor out = OUT(NONE), inputs = FLOATS(SIZE(2), 0, 1.09861229), targets = FLOATS(SIZE(2), 1, 0);
    CALL(diopiSigmoidFocalLoss(ctx, out, inputs, targets, 0.25f, 2.0f, ReductionSum));
    EXPECT(out, 0.62816463);
}

CALLER(diopiMSELossBackward) {
    Tensor out = OUT(SIZE(2)), grad = FLOATS(NONE, 3), input = FLOATS(SIZE(2), 5, 1), target = FLOATS(SIZE(2), 1, 2);
    CALL(diopiMSELossBackward(ctx, out, grad, input, target, ReductionMean)); /* 2 / 2 * 3 * (input - target) */
    EXPECT(out, 12, -3);
}
