#include "harness.h"

CALLER(diopiCat) {
    Tensor out = OUT(SIZE(2, 4)), a = FLOATS(SIZE(2, 1), 1, 2), b = FLOATS(SIZE(2, 2), 3, 4, 5, 6), c = FLOATS(SIZE(2, 1), 7, 8);
    CALL(diopiCat(ctx, out, READ(a, b, c), 3, 1));
    EXPECT(out, 1, 3, 4, 7, 2, 5, 6, 8);
}

CALLER(diopiStack) {
    Tensor out = OUT(SIZE(2, 3)), a = FLOATS(SIZE(2), 1, 2), b = FLOATS(SIZE(2), 3, 4), c = FLOATS(SIZE(2), 5, 6);
    CALL(diopiStack(ctx, out, READ(a, b, c), 3, 1));
    EXPECT(out, 1, 3, 5, 2, 4, 6);
}

CALLER(diopiSplitWithSizes) {
    Tensor first = OUT(SIZE(1, 2)), second = OUT(SIZE(1, 1)), input = FLOATS(SIZE(1, 3), 1, 2, 3);
    CALL(diopiSplitWithSizes(ctx, WRITTEN(first, second), 2, input, SIZE(2, 1), 1));
    EXPECT(first, 1, 2);
    EXPECT(second, 3);
}

CALLER(diopiSlice) {
    Tensor out = OUT(SIZE(1, 2)), input = FLOATS(SIZE(1, 6), 10, 11, 12, 13, 14, 15);
    CALL(diopiSlice(ctx, out, input, 1, 2, 6, 3)); /* at 2 and 5 */
    EXPECT(out, 12, 15);
}

CALLER(diopiRoll) {
    Tensor out = OUT(SIZE(2, 3)), input = FLOATS(SIZE(2, 3), 1, 2, 3, 4, 5, 6);
    CALL(diopiRoll(ctx, out, input, SIZE(2), SIZE(1)));
    EXPECT(out, 2, 3, 1, 5, 6, 4);
}

CALLER(diopiRepeat) {
    Tensor out = OUT(SIZE(2, 6)), input = FLOATS(SIZE(1, 2), 1, 2);
    CALL(diopiRepeat(ctx, out, input, SIZE(2, 3)));
    EXPECT(out, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2);
}

CALLER(diopiPermute) {
    Tensor out = OUT(SIZE(3, 1, 2)), input = FLOATS(SIZE(1, 2, 3), 1, 2, 3, 4, 5, 6);
    CALL(diopiPermute(ctx, out, input, SIZE(2, 0, 1)));
    EXPECT(out, 1, 4, 2, 5, 3, 6);
}

CALLER(diopiUnfold) {
    Tensor out = OUT(SIZE(2, 1, 3)), input = FLOATS(SIZE(5, 1), 1, 2, 3, 4, 5);
    CALL(diopiUnfold(ctx, out, input, 0, 3, 2));
    EXPECT(out, 1, 2, 3, 3, 4, 5);
}

CALLER(diopiPad) {
    Tensor out = OUT(SIZE(3, 3)), input = FLOATS(SIZE(2, 2), 1, 2, 3, 4);
    CALL(diopiPad(ctx, out, input, SIZE(1, 0, 0, 1), "constant", &(double){9})); /* one column before, one row behind */
    EXPECT(out, 9, 1, 2, 9, 3, 4, 9, 9, 9);
    Tensor line = FLOATS(SIZE(1, 3), 1, 2, 3), longer = OUT(SIZE(1, 6));
    CALL(diopiPad(ctx, longer, line, SIZE(2, 1), "reflect", NULL));
    EXPECT(longer, 3, 2, 1, 2, 3, 2);
    CALL(diopiPad(ctx, longer, line, SIZE(2, 1), "replicate", NULL));
    EXPECT(longer, 1, 1, 1, 2, 3, 3);
    CALL(diopiPad(ctx, longer, line, SIZE(2, 1), "circular", NULL));
    EXPECT(longer, 2, 3, 1, 2, 3, 1);
}

CALLER(diopiTril) {
    Tensor out = OUT(SIZE(3, 3)), input = FLOATS(SIZE(3, 3), 1, 2, 3, 4, 5, 6, 7, 8, 9);
    CALL(diopiTril(ctx, out, input, 1));
    EXPECT(out, 1, 2, 0, 4, 5, 6, 7, 8, 9);
    CALL(diopiTril(ctx, out, input, -1));
    EXPECT(out, 0, 0, 0, 4, 0, 0, 7, 8, 0);
}

CALLER(diopiLinspace) {
    Tensor out = OUT(SIZE(5));
    CALL(diopiLinspace(ctx, out, REAL(1), REAL(3), 5));
    EXPECT(out, 1, 1.5, 2, 2.5, 3);
}

CALLER(diopiArange) {
    Tensor out = OUT_OF(int64, SIZE(3));
    CALL(diopiArange(ctx, out, WHOLE(10), WHOLE(3), WHOLE(-3)));
    EXPECT(out, 10, 7, 4);
}

CALLER(diopiMeshGrid) {
    Tensor rows = OUT(SIZE(2, 3)), columns = OUT(SIZE(2, 3)), a = FLOATS(SIZE(2), 1, 2), b = FLOATS(SIZE(3), 3, 4, 5);
    CALL(diopiMeshGrid(ctx, WRITTEN(rows, columns), READ(a, b), 2));
    EXPECT(rows, 1, 1, 1, 2, 2, 2);
    EXPECT(columns, 3, 4, 5, 3, 4, 5);
}
