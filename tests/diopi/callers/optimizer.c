#include "harness.h"

CALLER(diopiAdam) {
    Tensor param = FLOATS(SIZE(1), 1), grad = FLOATS(SIZE(1), 2), avg = FLOATS(SIZE(1), 0.5), square = FLOATS(SIZE(1), 1);
    Tensor largest = FLOATS(SIZE(1), 9);
    /* gradient 2.25; 0.25 + 1.125; 0.75 + 0.25 * 5.0625; 1 - 0.1 / 0.75 * 1.375 / (sqrt(2.015625 / 0.4375) + 1) */
    CALL(diopiAdam(ctx, param, grad, avg, square, largest, 0.1f, 0.5f, 0.75f, 1, 0.25f, 2, false));
    EXPECT(param, 0.94173282);
    EXPECT(avg, 1.375);
    EXPECT(square, 2.015625);
    EXPECT(largest, 9);
}

CALLER(diopiAdamW) {
    Tensor param = FLOATS(SIZE(1), 1), grad = FLOATS(SIZE(1), 2), avg = FLOATS(SIZE(1), 0.5), square = FLOATS(SIZE(1), 1);
    Tensor largest = FLOATS(SIZE(1), 7);
    /* 0.975; 0.25 + 1; 0.75 + 1, less than 7; 0.975 - 0.1 / 0.75 * 1.25 / (sqrt(7 / 0.4375) + 1) */
    CALL(diopiAdamW(ctx, param, grad, avg, square, largest, 0.1f, 0.5f, 0.75f, 1, 0.25f, 2, true));
    EXPECT(param, 0.94166667);
    EXPECT(avg, 1.25);
    EXPECT(square, 1.75);
    EXPECT(largest, 7);
}

CALLER(diopiSgd) {
    Tensor param = FLOATS(SIZE(1), 1), grad = FLOATS(SIZE(1), 2), buf = FLOATS(SIZE(1), 4);
    /* gradient 2 + 1 * 1; 0.5 * 4 + 0.75 * 3 */
    CALL(diopiSgd(ctx, param, grad, buf, 0.1, 0.5, 0.25, 1, false));
    EXPECT(param, 0.575);
    EXPECT(buf, 4.25);
    Tensor other = FLOATS(SIZE(1), 1), momentum = FLOATS(SIZE(1), 4);
    /* 0.5 * 4 + 3, then 3 + 0.5 * 5 */
    CALL(diopiSgd(ctx, other, grad, momentum, 0.1, 0.5, 0, 1, true));
    EXPECT(other, 0.45);
    EXPECT(momentum, 5);
}

CALLER(diopiRmsprop) {
    Tensor param = FLOATS(SIZE(1), 1), grad = FLOATS(SIZE(1), 2), square = FLOATS(SIZE(1), 1), avg = FLOATS(SIZE(1), 0.5);
    Tensor momentum = FLOATS(SIZE(1), 3);
    /* gradient 2.75; 4.28125 and 1.625; 0.25 * 3 + 2.75 / (sqrt(4.28125 - 2.640625) + 1) */
    CALL(diopiRmsprop(ctx, param, grad, square, avg, momentum, 0.1f, 0.5f, 1, 0.75f, 0.25f, true));
    EXPECT(param, 0.80443191);
    EXPECT(square, 4.28125);
    EXPECT(avg, 1.625);
    EXPECT(momentum, 1.95568090);
}

CALLER(diopiAdadelta) {
    Tensor param = FLOATS(SIZE(1), 1), grad = FLOATS(SIZE(1), 2), square = FLOATS(SIZE(1), 1), delta = FLOATS(SIZE(1), 3);
    /* gradient 2.25; 0.75 + 0.25 * 5.0625; sqrt(3 + 1) / sqrt(2.015625 + 1) * 2.25 */
    CALL(diopiAdadelta(ctx, param, grad, square, delta, 0.5f, 0.75f, 1, 0.25f));
    EXPECT(param, -0.29566835);
    EXPECT(square, 2.015625);
    EXPECT(delta, 3.92875648);
}

CALLER(diopiAmpUpdateScaleInp) {
    Tensor scale = FLOATS(SIZE(1), 8), tracker = INT32S(SIZE(1), 2), found = FLOATS(SIZE(1), 0);
    CALL(diopiAmpUpdateScaleInp(ctx, scale, tracker, found, 3, 0.5, 3)); /* the third good step */
    EXPECT(scale, 24);
    EXPECT(tracker, 0);
    Tensor infinite = FLOATS(SIZE(1), 1);
    CALL(diopiAmpUpdateScaleInp(ctx, scale, tracker, infinite, 3, 0.5, 3));
    EXPECT(scale, 12);
}
