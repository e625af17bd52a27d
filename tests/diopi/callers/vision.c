#include "harness.h"

CALLER(diopiConvolution2d) {
    Tensor out = OUT(SIZE(1, 1, 4, 2)), input = FLOATS(SIZE(1, 1, 3, 4), 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12);
    Tensor weight = FLOATS(SIZE(1, 1, 2, 1), 1, 10), bias = FLOATS(SIZE(1), 100);
    /* a row plus ten times the next one, rows of zeros around, every second column */
    CALL(diopiConvolution2d(ctx, out, input, weight, bias, SIZE(1, 2), SIZE(1, 0), SIZE(1, 1), 1));
    EXPECT(out, 110, 130, 151, 173, 195, 217, 109, 111);
    Tensor tall = OUT(SIZE(1, 1, 1, 4));
    CALL(diopiConvolution2d(ctx, tall, input, weight, NULL, SIZE(1, 1), SIZE(0, 0), SIZE(2, 1), 1)); /* rows 0 and 2 */
    EXPECT(tall, 91, 102, 113, 124);
}

CALLER(diopiConvTranspose2d) {
    Tensor out = OUT(SIZE(1, 1, 2, 3)), input = FLOATS(SIZE(1, 1, 1, 2), 1, 2);
    Tensor weight = FLOATS(SIZE(1, 1, 1, 3), 1, 10, 100), bias = FLOATS(SIZE(1), 5);
    /* 1, 10, 100 + 2, 20, 200 without its ends; the output padding is a row */
    CALL(diopiConvTranspose2d(ctx, out, input, weight, bias, SIZE(3, 2), SIZE(0, 1), SIZE(1, 0), 1, SIZE(1, 1)));
    EXPECT(out, 15, 107, 25, 5, 5, 5);
}

CALLER(diopiMaxPool2dWithIndices) {
    Tensor out = OUT(SIZE(1, 1, 2, 2)), indices = OUT_OF(int64, SIZE(1, 1, 2, 2));
    Tensor input = FLOATS(SIZE(1, 1, 3, 4), 1, 9, 3, 4, 5, 6, 7, 2, 8, 0, 11, 10);
    CALL(diopiMaxPool2dWithIndices(ctx, out, indices, input, SIZE(2, 1), SIZE(1, 2), SIZE(0, 0), SIZE(1, 1), false));
    EXPECT(out, 5, 7, 8, 11);
    EXPECT(indices, 4, 6, 8, 10);
}

CALLER(diopiAvgPool2d) {
    Tensor out = OUT(SIZE(1, 1, 1, 4)), input = FLOATS(SIZE(1, 1, 2, 3), 1, 2, 3, 4, 5, 6);
    CALL(diopiAvgPool2d(ctx, out, input, SIZE(1, 2), SIZE(2, 1), SIZE(0, 1), false, false, NULL));
    EXPECT(out, 1, 1.5, 2.5, 3);
    CALL(diopiAvgPool2d(ctx, out, input, SIZE(1, 2), SIZE(2, 1), SIZE(0, 1), false, true, NULL));
    EXPECT(out, 0.5, 1.5, 2.5, 1.5);
    CALL(diopiAvgPool2d(ctx, out, input, SIZE(1, 2), SIZE(2, 1), SIZE(0, 1), false, true, &(int64_t){4}));
    EXPECT(out, 0.25, 0.75, 1.25, 0.75);
}

CALLER(diopiUpsampleLinear) {
    Tensor out = OUT(SIZE(1, 1, 4)), input = FLOATS(SIZE(1, 1, 2), 0, 6);
    CALL(diopiUpsampleLinear(ctx, out, input, SIZE(4), true, "linear"));
    EXPECT(out, 0, 2, 4, 6);
    CALL(diopiUpsampleLinear(ctx, out, input, SIZE(4), false, "linear"));
    EXPECT(out, 0, 1.5, 4.5, 6);
}

CALLER(diopiIm2Col) {
    Tensor out = OUT(SIZE(1, 2, 4)), input = FLOATS(SIZE(1, 1, 3, 2), 1, 2, 3, 4, 5, 6);
    /* kernel, dilation, padding, stride: two rows of the second column, next to a column of zeros */
    CALL(diopiIm2Col(ctx, out, input, SIZE(2, 1), SIZE(1, 1), SIZE(0, 1), SIZE(1, 2)));
    EXPECT(out, 0, 2, 0, 4, 0, 4, 0, 6);
}

CALLER(diopiCol2Im) {
    Tensor out = OUT(SIZE(1, 1, 3, 2)), input = FLOATS(SIZE(1, 2, 4), 7, 2, 7, 4, 7, 40, 7, 6);
    /* the reverse: what overlaps is added, what lies in the padding is dropped */
    CALL(diopiCol2Im(ctx, out, input, SIZE(3, 2), SIZE(2, 1), SIZE(1, 1), SIZE(0, 1), SIZE(1, 2)));
    EXPECT(out, 0, 2, 0, 44, 0, 6);
}
