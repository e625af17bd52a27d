"""Arithmetic that kernels share: rounding, quantising, functions that Triton's core does not have."""

from __future__ import annotations

import triton.language as tl  # type: ignore[import-not-found]

from dlinfer.vendors.triton.launching import jit

# What numbers of float32 must be moved by so that their last bit is a whole one.
MOVE = tl.constexpr(12582912.0)
LEAST = tl.constexpr(1e-7)


@jit
def rounded(x: tl.tensor) -> tl.tensor:
    """To whole numbers, halves to even, for magnitudes below 2**22."""
    return (x + MOVE) - MOVE


@jit
def quantised_row(y: tl.tensor, FLOAT8: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """(numbers, scale) of a tile [rows, columns] with one scale for each row, as `dynamic_quant` has it."""
    largest = tl.max(tl.abs(y), 1)
    scale = tl.math.div_rn(tl.maximum(largest, LEAST), 448.0 if FLOAT8 else 127.0)
    return scaled(y, scale[:, None], FLOAT8), scale


@jit
def scaled(y: tl.tensor, scale: tl.tensor, FLOAT8: tl.constexpr) -> tl.tensor:
    """y / scale in steps of one, or in the steps of an 8-bit float."""
    number = tl.math.div_rn(y, tl.broadcast_to(scale, y.shape))
    if FLOAT8:
        result = tl.minimum(tl.maximum(number, -448.0), 448.0).to(tl.float8e4nv)
    else:
        result = rounded(tl.minimum(tl.maximum(number, -128.0), 127.0)).to(tl.int8)
    return result


@jit
def tanh(x: tl.tensor) -> tl.tensor:
    """A polynomial near 0, where 1 - 2 / (exp(2x) + 1) would lose digits; the constants are a fit to 4e-10."""
    z = x * x
    near = -0.00841057 + z * 0.00237151
    near = -0.33333333 + z * (0.13333313 + z * (-0.05396154 + z * (0.02178839 + z * near)))
    far = 1.0 - 2.0 / (tl.exp(2.0 * tl.abs(x)) + 1.0)
    return tl.where(tl.abs(x) < 0.6, x + x * z * near, tl.where(x < 0, -far, far))


@jit
def find_group(
    ends: tl.tensor, tile: tl.tensor, groups: tl.tensor, FACTOR: tl.constexpr, SIZE: tl.constexpr
) -> tl.tensor:
    """Which group of rows a tile belongs to, when group g begins with tile (rows before it) // SIZE + g.

    `ends` are cumulative; one of them stands for FACTOR rows. That many tiles are enough for every group, and nobody
    needs to know the lengths on the host.
    """
    low = 0
    high = groups
    while low < high:
        middle = (low + high) // 2
        before = tl.load(ends + middle - 1, mask=middle > 0, other=0).to(tl.int32)
        if before * FACTOR // SIZE + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1
