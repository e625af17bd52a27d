#include "harness.h"

/* 1.09861229 is the logarithm of 3: a softmax over (0, ln 3) is (1/4, 3/4). */

CALLER(diopiRotaryEmbedding) {
    Tensor out = OUT(SIZE(1, 1, 4)), x = FLOATS(SIZE(1, 1, 4), 1, 2, 3, 4);
    Tensor cosine = FLOATS(SIZE(1, 1, 2), 0.6, 0), sine = FLOATS(SIZE(1, 1, 2), 0.8, 1);
    CALL(diopiRotaryEmbedding(ctx, out, x, cosine, sine, false, false)); /* pairs (1, 3) and (2, 4) */
    EXPECT(out, -1.8, -4, 2.6, 2);
    CALL(diopiRotaryEmbedding(ctx, out, x, cosine, sine, true, true)); /* pairs (1, 2) and (3, 4), backwards */
    EXPECT(out, 2.2, 0.4, 4, -3);
    CALL(diopiRotaryEmbedding(ctx, out, x, cosine, sine, false, true));
    EXPECT(out, -1, 2, -4, 3);
}

CALLER(diopiRotaryEmbeddingV2) {
    Tensor query = FLOATS(SIZE(1, 2), 1, 2), key = FLOATS(SIZE(1, 2), 3, 4);
    Tensor cosine = FLOATS(SIZE(1, 2), 0.6, 0.6), sine = FLOATS(SIZE(1, 2), 0.8, 0.8);
    CALL(diopiRotaryEmbeddingV2(ctx, query, key, cosine, sine, 2));
    EXPECT(query, -1, 2);
    EXPECT(key, -1.4, 4.8);
}

CALLER(diopiScaledMaskedSoftmax) {
    Tensor out = OUT(SIZE(1, 1, 1, 3)), input = FLOATS(SIZE(1, 1, 1, 3), 0, 0.549306144, 5), mask = BOOLS(SIZE(1, 1, 1, 3), 0, 0, 1);
    CALL(diopiScaledMaskedSoftmax(ctx, out, input, mask, 2, false));
    EXPECT(out, 0.25, 0.75, 0);
}

CALLER(diopiApplyPenalty) {
    Tensor logits = FLOATS(SIZE(2, 3), 1, 2, 3, 4, 5, 6), presence = FLOATS(SIZE(2), 0.5, 0.25), frequency = FLOATS(SIZE(2), 2, 3);
    Tensor ids = INT32S(SIZE(3), 2, 0, 1), counts = INT32S(SIZE(3), 1, 2, 3), ends = INT32S(SIZE(3), 0, 1, 3);
    CALL(diopiApplyPenalty(ctx, logits, presence, frequency, ids, counts, ends, 2)); /* 3 - 2 - 0.5; 4 - 6 - 0.25; 5 - 9 - 0.25 */
    EXPECT(logits, 1, 2, 0.5, -2.25, -4.25, 6);
}

CALLER(diopiApplyPenaltyV2) {
    Tensor logits = FLOATS(SIZE(1, 3), 4, -2, 8), presence = FLOATS(SIZE(2), 0.5, 0.25), frequency = FLOATS(SIZE(2), 2, 3);
    Tensor repetition = FLOATS(SIZE(2), 2, 4), ids = INT32S(SIZE(2), 0, 1), counts = INT32S(SIZE(2), 1, 3);
    CALL(diopiApplyPenaltyV2(ctx, logits, presence, frequency, repetition, ids, counts)); /* 4 / 2 - 2 - 0.5; -2 * 4 - 9 - 0.25 */
    EXPECT(logits, -0.5, -17.25, 8);
}

CALLER(diopiDestIndexCopyKV) {
    Tensor cache = FLOATS(SIZE(3, 1, 2), 1, 2, 3, 4, 5, 6), k = FLOATS(SIZE(1, 1, 2), 70, 80), places = INT32S(SIZE(1), 1);
    CALL(diopiDestIndexCopyKV(ctx, cache, k, places));
    EXPECT(cache, 1, 2, 70, 80, 5, 6);
}

CALLER(diopiTokenAttentionInference) {
    Tensor out = OUT(SIZE(1, 3)), q = FLOATS(SIZE(2, 1, 4), 1, 2, 3, 4, 10, 0, 0, 0);
    Tensor k = FLOATS(SIZE(3, 1, 4), 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1), places = INT32S(SIZE(2, 3), 1, 2, 0, 1, 1, 0);
    Tensor starts = INT32S(SIZE(2), 0, 2), lengths = INT32S(SIZE(2), 2, 1);
    CALL(diopiTokenAttentionInference(ctx, out, q, k, places, starts, lengths, 3)); /* 7 / 2 and 1 / 2; 10 / 2 */
    EXPECT(out, 3.5, 0.5, 5);
}

CALLER(diopiTokenSoftmaxReduceVInference) {
    Tensor out = OUT(SIZE(1, 1, 2)), logics = FLOATS(SIZE(1, 2), 0, 1.09861229), v = FLOATS(SIZE(3, 1, 2), 1, 2, 30, 40, 5, 6);
    Tensor places = INT32S(SIZE(1, 3), 1, 2, 0), starts = INT32S(SIZE(1), 0), lengths = INT32S(SIZE(1), 2);
    CALL(diopiTokenSoftmaxReduceVInference(ctx, out, logics, v, places, starts, lengths, 3, 1)); /* (5, 6) / 4 + (1, 2) * 3 / 4 */
    EXPECT(out, 2, 3);
}

CALLER(diopiPagedAttention) {
    Tensor out = OUT(SIZE(1, 4)), q = FLOATS(SIZE(1, 4), 1, 2, 1, 2), table = INT32S(SIZE(1, 1), 1);
    Tensor k = FLOATS(SIZE(6, 2), 9, 9, 9, 9, 9, 9, 0, 0, 1.09861229, 1.09861229, 9, 9);
    Tensor v = FLOATS(SIZE(6, 2), 99, 99, 99, 99, 99, 99, 4, 40, 8, 80, 99, 99);
    /* four heads, two of the keys, width 1, two keys of the second block of three: weights 1 : 3 and 1 : 9 */
    CALL(diopiPagedAttention(ctx, out, q, k, v, NULL, SIZE(2), 4, 2, 1, table, 3));
    EXPECT(out, 7, 7.6, 70, 76);
}

CALLER(diopiContextAttentionInference) {
    Tensor out = OUT(SIZE(3, 1, 1)), q = FLOATS(SIZE(3, 1, 1), 1, 1, 1), k = FLOATS(SIZE(3, 1, 1), 5, 0, 1.09861229);
    Tensor v = FLOATS(SIZE(3, 1, 1), 2, 4, 8), starts = INT32S(SIZE(2), 0, 1), lengths = INT32S(SIZE(2), 1, 2);
    CALL(diopiContextAttentionInference(ctx, out, q, k, v, starts, lengths, 2));
    EXPECT(out, 2, 4, 7);
}

CALLER(diopiFlashAttention) {
    Tensor out = OUT(SIZE(1, 1, 1, 1)), lse = OUT(SIZE(1, 1, 1)), q = FLOATS(SIZE(1, 1, 1, 1), 1);
    Tensor k = FLOATS(SIZE(1, 2, 1, 1), 0, 0.549306144), v = FLOATS(SIZE(1, 2, 1, 1), 4, 8);
    CALL(diopiFlashAttention(ctx, out, lse, NULL, q, k, v, NULL, 0, 2, false, -1, -1));
    EXPECT(out, 7);
    EXPECT(lse, 1.38629436); /* the logarithm of 1 + 3 */
    CALL(diopiFlashAttention(ctx, out, lse, NULL, q, k, v, NULL, 0, 2, false, 0, -1)); /* nothing to the left: the last key */
    EXPECT(out, 8);
}
