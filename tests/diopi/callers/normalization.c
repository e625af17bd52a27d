#include "harness.h"

CALLER(diopiBatchNorm) {
    Tensor out = OUT(SIZE(4, 1)), save_mean = OUT(SIZE(1)), save_invstd = OUT(SIZE(1)), input = FLOATS(SIZE(4, 1), 1, 1, 5, 5);
    Tensor weight = FLOATS(SIZE(1), 6), bias = FLOATS(SIZE(1), 10), mean = FLOATS(SIZE(1), 100), var = FLOATS(SIZE(1), 30);
    /* mean 3, variance 4 (16 / 3 unbiased), and 4 + eps is 9 */
    CALL(diopiBatchNorm(ctx, out, save_mean, save_invstd, input, weight, bias, mean, var, true, 0.1, 5));
    EXPECT(out, 6, 6, 14, 14);
    EXPECT(save_mean, 3);
    EXPECT(save_invstd, 0.33333333);
    EXPECT(mean, 90.3);
    EXPECT(var, 27.5333333);
    Tensor known_mean = FLOATS(SIZE(1), 1), known_var = FLOATS(SIZE(1), 4);
    CALL(diopiBatchNorm(ctx, out, save_mean, save_invstd, input, weight, bias, known_mean, known_var, false, 0.1, 5));
    EXPECT(out, 10, 10, 18, 18);
    EXPECT(known_mean, 1);
}

CALLER(diopiLayerNorm) {
    Tensor out = OUT(SIZE(2, 2)), mean = OUT(SIZE(2, 1)), invstd = OUT(SIZE(2, 1)), input = FLOATS(SIZE(2, 2), 1, 5, 0, 2);
    Tensor weight = FLOATS(SIZE(2), 3, 6), bias = FLOATS(SIZE(2), 10, 20);
    CALL(diopiLayerNorm(ctx, out, mean, invstd, input, weight, bias, SIZE(2), 5)); /* roots of 4 + 5 and of 1 + 5 */
    EXPECT(out, 8, 24, 8.77525513, 22.44948974);
    EXPECT(mean, 3, 1);
    EXPECT(invstd, 0.33333333, 0.40824829);
}

CALLER(diopiGroupNorm) {
    Tensor out = OUT(SIZE(1, 2, 2)), mean = OUT(SIZE(1, 2)), invstd = OUT(SIZE(1, 2)), input = FLOATS(SIZE(1, 2, 2), 1, 5, 0, 2);
    Tensor weight = FLOATS(SIZE(2), 3, 6), bias = FLOATS(SIZE(2), 10, 20);
    CALL(diopiGroupNorm(ctx, out, mean, invstd, input, weight, bias, 2, 5));
    EXPECT(out, 8, 12, 17.55051026, 22.44948974);
    EXPECT(mean, 3, 1);
    EXPECT(invstd, 0.33333333, 0.40824829);
}

CALLER(diopiRMSNorm) {
    Tensor out = OUT(SIZE(1, 2)), inverse = OUT(SIZE(1, 1)), input = FLOATS(SIZE(1, 2), 3, 4);
    Tensor weight = FLOATS(SIZE(2), 2, 8), bias = FLOATS(SIZE(2), 1, 5);
    CALL(diopiRMSNorm(ctx, out, inverse, input, SIZE(2), weight, bias, 3.5)); /* the root of 12.5 + 3.5 is 4 */
    EXPECT(out, 2.5, 13);
    EXPECT(inverse, 0.25);
}

CALLER(diopiNormalize) {
    Tensor out = OUT(SIZE(1, 2)), input = FLOATS(SIZE(1, 2), 1, 3);
    CALL(diopiNormalize(ctx, out, input, 1, 1, 0.5)); /* divided by max(4, eps) */
    EXPECT(out, 0.25, 0.75);
    CALL(diopiNormalize(ctx, out, input, 1, 1, 8));
    EXPECT(out, 0.125, 0.375);
}
