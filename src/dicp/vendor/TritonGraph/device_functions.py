# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
# ruff: noqa: PLR0124
"""What generated kernels call: primitives that Triton has no operator for, and what `Reduce` and `Scan` accumulate.

Each accumulator is a function of two states, in order; a state is one or more values.
"""

from __future__ import annotations

from typing import Any

import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

from dicp.vendor.TritonGraph.installation import INTERPRETED

if INTERPRETED:
    from dicp.vendor.TritonGraph import interpreter

    interpreter.repair_interpreter()
    libdevice: Any = interpreter.MATHEMATICS
else:
    from triton.language.extra import libdevice  # type: ignore[import-not-found,no-redef]

__all__ = ["libdevice"]

# --- integers ---


@triton.jit
def trunc_div(a, b):
    """By zero: 0. By -1 it is no division: the lowest number has no negative."""
    minus = b == -1
    whole = a // tl.where((b == 0) | minus, 1, b).to(a.dtype)
    return tl.where(b == 0, 0, tl.where(minus, 0 - a, whole)).to(a.dtype)


@triton.jit
def unsigned_div(a, b):
    whole = a // tl.where(b == 0, 1, b).to(a.dtype)
    return tl.where(b == 0, 0, whole).to(a.dtype)


@triton.jit
def trunc_rest(a, b):
    """With the sign of the dividend."""
    return (a % tl.where((b == 0) | (b == -1), 1, b).to(a.dtype)).to(a.dtype)


@triton.jit
def unsigned_rest(a, b):
    return (a % tl.where(b == 0, 1, b).to(a.dtype)).to(a.dtype)


@triton.jit
def floor_rest(a, b):
    """With the sign of the divisor."""
    rest = trunc_rest(a, b)
    return tl.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


@triton.jit
def floor_div(a, b):
    rest = trunc_rest(a, b)
    whole = trunc_div(a, b)
    return tl.where((rest != 0) & ((b < 0) != (rest < 0)), whole - 1, whole).to(a.dtype)


@triton.jit
def float_remainder(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


@triton.jit
def gcd(a, b):
    a, b = tl.abs(a), tl.abs(b)
    a, b = tl.broadcast(a, b)
    while tl.max(tl.max((a != 0).to(tl.int32), 1), 0) != 0:
        rest = tl.where(a != 0, trunc_rest(b, a), b).to(a.dtype)
        b = tl.where(a != 0, a, b).to(a.dtype)
        a = tl.where(a != 0, rest, a).to(a.dtype)
    return b


@triton.jit
def unsigned_gcd(a, b):
    return gcd(a.to(tl.int32), b.to(tl.int32)).to(a.dtype)


@triton.jit
def signed_power(base, exponent, width: tl.constexpr):
    odd = (exponent & 1) != 0
    below = tl.where(base == 1, 1, tl.where(base == -1, tl.where(odd, -1, 1), 0)).to(base.dtype)
    return tl.where(exponent < 0, below, unsigned_power(base, exponent, width)).to(base.dtype)


@triton.jit
def unsigned_power(base, exponent, width: tl.constexpr):
    base, exponent = tl.broadcast(base, exponent)
    result = tl.full(base.shape, 1, base.dtype)
    for _ in range(width):
        result = tl.where((exponent & 1) != 0, result * base, result).to(base.dtype)
        exponent = (exponent >> 1).to(base.dtype)
        base = (base * base).to(base.dtype)
    return result


@triton.jit
def shift_left(a, b, width: tl.constexpr):
    beyond = (b < 0) | (b >= width)
    return tl.where(beyond, 0, a << tl.where(beyond, 0, b).to(a.dtype)).to(a.dtype)


@triton.jit
def signed_shift_right(a, b, width: tl.constexpr):
    beyond = (b < 0) | (b >= width)
    return (a >> tl.where(beyond, width - 1, b).to(a.dtype)).to(a.dtype)


@triton.jit
def unsigned_shift_right(a, b, width: tl.constexpr):
    beyond = b >= width
    return tl.where(beyond, 0, a >> tl.where(beyond, 0, b).to(a.dtype)).to(a.dtype)


# --- floats ---


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + libdevice.exp(x * -1.0))


@triton.jit
def digamma(x):
    """The recurrence up to 10, then the asymptotic series; the left half by reflection."""
    y = x.to(tl.float64)
    left = y < 0
    fraction = y - libdevice.trunc(y)
    reflected = tl.where(
        left, -3.14159265358979323846 / libdevice.tan(3.14159265358979323846 * fraction), 0.0
    )
    z = tl.where(left, 1.0 - y, y)
    rest = tl.zeros(z.shape, tl.float64)
    for _ in range(10):
        small = z < 10
        rest = tl.where(small, rest - 1.0 / tl.where(small, z, 1.0), rest)
        z = tl.where(small, z + 1.0, z)
    s = 1.0 / (z * z)
    series = -2.10927960927960927961e-2 + s * 8.33333333333333333333e-2
    series = 7.57575757575757575758e-3 + s * series
    series = -4.16666666666666666667e-3 + s * series
    series = 3.96825396825396825397e-3 + s * series
    series = -8.33333333333333333333e-3 + s * series
    series = 8.33333333333333333333e-2 + s * series
    series = tl.where(z < 1e17, s * series, 0.0)
    found = reflected + rest + libdevice.log(z) - 0.5 / z - series
    found = tl.where(left & (fraction == 0), float("nan"), found)
    at_zero = libdevice.copysign(tl.full(y.shape, float("inf"), tl.float64), y * -1.0)
    return tl.where(y == 0, at_zero, found).to(x.dtype)


@triton.jit
def maximum(a, b):
    """NaN if one is NaN."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


# --- accumulators ---


@triton.jit
def sum_of(a, b):
    return a + b


@triton.jit
def prod_of(a, b):
    return a * b


@triton.jit
def max_of(a, b):
    return maximum(a, b)


@triton.jit
def min_of(a, b):
    return minimum(a, b)


@triton.jit
def any_of(a, b):
    return a | b


@triton.jit
def all_of(a, b):
    return a & b


@triton.jit
def _chosen(first, a, at, b, bt):
    return tl.where(first, a, b), tl.where(first, at, bt)


@triton.jit
def argmax_of(a, at, b, bt):
    """NaN before all, of equal ones the smallest position."""
    same = (a == b) | ((a != a) & (b != b))
    first = tl.where(same, at < bt, (a != a) | ((b == b) & (a > b)))
    return _chosen(first, a, at, b, bt)


@triton.jit
def argmin_of(a, at, b, bt):
    same = (a == b) | ((a != a) & (b != b))
    first = tl.where(same, at < bt, (a != a) | ((b == b) & (a < b)))
    return _chosen(first, a, at, b, bt)


@triton.jit
def running_max_of(a, at, b, bt):
    """The last of equal ones; a NaN stays."""
    first = (b == b) & ((a != a) | (a > b))
    return _chosen(first, a, at, b, bt)


@triton.jit
def running_min_of(a, at, b, bt):
    first = (b == b) & ((a != a) | (a < b))
    return _chosen(first, a, at, b, bt)


@triton.jit
def welford_of(mean, squares, count, other, deviation, size):
    """Mean, squared deviations from it, of how many."""
    both = count + size
    share = tl.where(both > 0, size / tl.where(both > 0, both, 1.0), 0.0)
    difference = tl.where(size > 0, other, mean) - tl.where(count > 0, mean, other)
    joined = tl.where(count > 0, mean + difference * share, other)
    return joined, squares + deviation + difference * difference * count * share, both


@triton.jit
def _shift(x):
    return tl.where(tl.abs(x) == float("inf"), 0.0, x)


@triton.jit
def logsumexp_of(high, total, other, more):
    """The maximum, and the sum of exp(x - maximum)."""
    most = maximum(high, other)
    shift = _shift(most)
    left = tl.where(total == 0, 0.0, total * libdevice.exp(_shift(high) - shift))
    right = tl.where(more == 0, 0.0, more * libdevice.exp(_shift(other) - shift))
    return most, left + right
