// Symbolic sizes: quotients round down, as those of Python do.
INLINE i64 size_quotient(i64 a, i64 b) {
    const i64 whole = a / b;
    return whole - (a % b != 0 && (a % b < 0) != (b < 0));
}
INLINE i64 size_modulo(i64 a, i64 b) { return a - size_quotient(a, b) * b; }
template <class A, class B> INLINE auto size_maximum(A a, B b) { return a < b ? b : a; }
template <class A, class B> INLINE auto size_minimum(A a, B b) { return b < a ? b : a; }
INLINE i64 size_aligned(i64 bytes) { return bytes < 0 ? 0 : (bytes + 63) / 64 * 64; }
