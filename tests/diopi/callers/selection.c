#include "harness.h"

CALLER(diopiGather) {
    Tensor out = OUT(SIZE(2, 2)), input = FLOATS(SIZE(2, 3), 1, 2, 3, 4, 5, 6), index = INT64S(SIZE(2, 2), 2, 0, 1, 1);
    CALL(diopiGather(ctx, out, input, 1, index));
    EXPECT(out, 3, 1, 5, 5);
}

CALLER(diopiScatter) {
    Tensor out = OUT(SIZE(2, 2)), input = FLOATS(SIZE(2, 2), 10, 20, 30, 40);
    Tensor source = FLOATS(SIZE(1, 2), 1, 2), index = INT64S(SIZE(1, 2), 1, 0);
    CALL(diopiScatter(ctx, out, input, 0, source, index, "add"));
    EXPECT(out, 10, 22, 31, 40);
    CALL(diopiScatter(ctx, out, input, 0, source, index, ""));
    EXPECT(out, 10, 2, 1, 40);
    CALL(diopiScatter(ctx, out, input, 1, source, index, "multiply"));
    EXPECT(out, 20, 20, 30, 40);
}

CALLER(diopiIndexPut) {
    Tensor out = OUT(SIZE(3)), input = FLOATS(SIZE(3), 1, 2, 3), values = FLOATS(SIZE(3), 10, 20, 30), index = INT64S(SIZE(3), 2, 0, 2);
    CALL(diopiIndexPut(ctx, out, input, values, READ(index), 1, true));
    EXPECT(out, 21, 2, 43);
}

CALLER(diopiIndexSelect) {
    Tensor out = OUT(SIZE(2, 2)), input = FLOATS(SIZE(2, 3), 1, 2, 3, 4, 5, 6), index = INT64S(SIZE(2), 2, 0);
    CALL(diopiIndexSelect(ctx, out, input, 1, index));
    EXPECT(out, 3, 1, 6, 4);
}

CALLER(diopiSelectScatter) {
    Tensor out = OUT(SIZE(2, 2)), input = FLOATS(SIZE(2, 2), 1, 2, 3, 4), source = FLOATS(SIZE(2), 50, 60);
    CALL(diopiSelectScatter(ctx, out, input, source, 1, 0)); /* column 0 */
    EXPECT(out, 50, 2, 60, 4);
}

CALLER(diopiSliceScatter) {
    Tensor out = OUT(SIZE(1, 6)), input = FLOATS(SIZE(1, 6), 0, 1, 2, 3, 4, 5), source = FLOATS(SIZE(1, 2), 70, 80);
    CALL(diopiSliceScatter(ctx, out, input, source, 1, 2, 6, 3)); /* at 2 and 5 */
    EXPECT(out, 0, 1, 70, 3, 4, 80);
}

CALLER(diopiIndexFillScalar) {
    Tensor out = OUT(SIZE(2, 2)), input = FLOATS(SIZE(2, 2), 1, 2, 3, 4), index = INT64S(SIZE(1), 0);
    CALL(diopiIndexFillScalar(ctx, out, input, 1, index, REAL(9)));
    EXPECT(out, 9, 2, 9, 4);
}

CALLER(diopiMaskedScatter) {
    Tensor out = OUT(SIZE(4)), input = FLOATS(SIZE(4), 1, 2, 3, 4), mask = BOOLS(SIZE(4), 0, 1, 0, 1), source = FLOATS(SIZE(4), 7, 8, 9, 9);
    CALL(diopiMaskedScatter(ctx, out, input, mask, source));
    EXPECT(out, 1, 7, 3, 8);
}

CALLER(diopiTopk) {
    Tensor values = OUT(SIZE(1, 2)), indices = OUT_OF(int64, SIZE(1, 2)), input = FLOATS(SIZE(1, 4), 5, 9, 1, 7);
    CALL(diopiTopk(ctx, values, indices, input, 2, 1, true, true));
    EXPECT(values, 9, 7);
    EXPECT(indices, 1, 3);
    CALL(diopiTopk(ctx, values, indices, input, 2, 1, false, true));
    EXPECT(values, 1, 5);
    EXPECT(indices, 2, 0);
}

CALLER(diopiSort) {
    Tensor values = OUT(SIZE(3, 1)), indices = OUT_OF(int64, SIZE(3, 1)), input = FLOATS(SIZE(3, 1), 5, 9, 1);
    CALL(diopiSort(ctx, values, indices, input, 0, true, &(bool){true}));
    EXPECT(values, 9, 5, 1);
    EXPECT(indices, 1, 0, 2);
}

CALLER(diopiOneHot) {
    Tensor out = OUT_OF(int64, SIZE(2, 4)), input = INT64S(SIZE(2), 2, 0);
    CALL(diopiOneHot(ctx, out, input, 4));
    EXPECT(out, 0, 0, 1, 0, 1, 0, 0, 0);
}

CALLER(diopiEmbedding) {
    Tensor out = OUT(SIZE(2, 2)), weight = FLOATS(SIZE(3, 2), 1, 2, 3, 4, 5, 6), indices = INT64S(SIZE(2), 2, 0);
    CALL(diopiEmbedding(ctx, out, weight, indices, 1, false, false));
    EXPECT(out, 5, 6, 1, 2);
}

CALLER(diopiEmbeddingBackward) {
    Tensor out = OUT(SIZE(4, 1)), grad = FLOATS(SIZE(4, 1), 1, 2, 4, 8), indices = INT64S(SIZE(4), 0, 2, 0, 3);
    CALL(diopiEmbeddingBackward(ctx, out, grad, indices, 4, 2, false, false)); /* row 2 is padding */
    EXPECT(out, 5, 0, 0, 8);
    CALL(diopiEmbeddingBackward(ctx, out, grad, indices, 4, 2, true, false)); /* 0 occurs twice */
    EXPECT(out, 2.5, 0, 0, 8);
}
