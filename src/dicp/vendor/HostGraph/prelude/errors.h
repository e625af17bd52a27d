// Errors of a run, found inside loops and reported behind them.
static char* put(char* at, const char* text) {
    while (*text) *at++ = *text++;
    return at;
}
static char* put(char* at, i64 number) {
    char digits[24];
    int count = 0;
    u64 rest = number < 0 ? 0 - (u64)number : (u64)number;
    do digits[count++] = (char)('0' + rest % 10);
    while (rest /= 10);
    if (number < 0) *at++ = '-';
    while (count) *at++ = digits[--count];
    return at;
}
static __attribute__((noinline, cold)) void fail_index(const Run& run, i64 index, i64 size) {
    char text[128];
    char* at = put(text, "index ");
    at = put(put(put(at, index), " is out of bounds for a dimension with size "), size);
    *at = 0;
    run.services->fail(run.frame, text);
}
// The smallest and the largest of the indices that a loop met.
INLINE void check_indices(const Run& run, i64 lowest, i64 highest, i64 size, bool wraps) {
    if (highest >= size)
        fail_index(run, highest, size);
    else if (lowest < (wraps ? -size : 0))
        fail_index(run, lowest, size);
}
// A number that the compiler computes one at a time.
INLINE i64 not_vectorised(i64 number) {
    __asm__("" : "+r"(number));
    return number;
}
INLINE i64 checked_index(i64 index, i64 size, bool wraps) {
    const i64 found = wraps && index < 0 ? index + size : index;
    return (u64)found < (u64)size ? found : 0;
}
static __attribute__((noinline, cold)) void fail_division(const Run& run) {
    run.services->fail(run.frame, "ZeroDivisionError: an integer is divided by zero");
}
