"""Floating-point formats as the verdict needs them: the unit in the last place, the largest number, the errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

# Significant bits (the hidden one included) and the exponent of the smallest normal number.
_BITS = {
    torch.float64: (53, -1022),
    torch.float32: (24, -126),
    torch.float16: (11, -14),
    torch.bfloat16: (8, -126),
    torch.float8_e4m3fn: (4, -6),
    torch.float8_e5m2: (3, -14),
    torch.float8_e4m3fnuz: (4, -7),
    torch.float8_e5m2fnuz: (3, -15),
}
# Chips may write 0 for what is below the smallest normal number of a wide format. In float16 that number is 6e-5:
# gradients of that size are ordinary, and flushing them is a fault.
_MAY_FLUSH_BELOW_EXPONENT = -100
_COMPLEX = {torch.complex64: torch.float32, torch.complex128: torch.float64, torch.complex32: torch.float16}
_EXPONENT_MASK = 0x7FF0000000000000
# Errors are counted in units in float32; below this part of the largest value its range would not do.
_LEAST_UNIT = 2.0**-60


@dataclass(frozen=True)
class Format:
    """One floating-point format."""

    dtype: torch.dtype
    bits: int
    lowest_exponent: int
    largest: float

    @cached_property
    def roundoff(self) -> float:
        """The largest relative error of one rounding to nearest."""
        return 2.0**-self.bits

    @cached_property
    def smallest_normal(self) -> float:
        return 2.0**self.lowest_exponent

    @cached_property
    def may_flush(self) -> bool:
        return self.lowest_exponent < _MAY_FLUSH_BELOW_EXPONENT

    @cached_property
    def overflow(self) -> float:
        """From here on rounding to nearest gives infinity: half a step above the largest number."""
        exponent = int(torch.tensor(self.largest, dtype=torch.float64).frexp().exponent)
        return self.largest + 2.0 ** (exponent - self.bits - 1)


@lru_cache(maxsize=64)
def format_of(dtype: torch.dtype) -> Format | None:
    """The format of a dtype (of the parts of a complex one); None for integers and unknown formats."""
    dtype = _COMPLEX.get(dtype, dtype)
    if dtype not in _BITS:
        return None
    bits, exponent = _BITS[dtype]
    return Format(dtype, bits, exponent, torch.finfo(dtype).max)


def unit_in_last_place(exact: torch.Tensor, form: Format) -> torch.Tensor:
    """The distance of neighbouring numbers of `form` around each (float64) value."""
    powers = (exact.view(torch.int64) & _EXPONENT_MASK).view(torch.float64)
    largest = float(powers.amax()) if powers.numel() else 1.0
    if math.isinf(largest):
        # NaN and infinity have no neighbours to count with.
        powers[powers.isinf()] = 0
        largest = float(powers.amax())
    least = max(form.smallest_normal, min(largest, form.largest) * _LEAST_UNIT)
    return powers.clamp_(least, form.largest).mul_(2.0 ** (1 - form.bits))


def real_parts(value: torch.Tensor) -> torch.Tensor:
    """A flat float64 tensor of the values (real and imaginary parts of complex ones); perhaps not a copy."""
    if value.layout != torch.strided:
        value = value.to_dense()
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    return value.to(torch.float64).reshape(-1)


def error_against(value: torch.Tensor, exact: torch.Tensor, overflow: float) -> torch.Tensor:
    """value - exact; infinite where only one of them is NaN or infinite, and no overflow explains it.

    Infinity stands for anything from `overflow` on: where the exact value lies beyond, it is right.
    """
    error = value - exact
    if math.isfinite(float(error.sum())):
        return error
    agrees = (value == exact) | (value.isnan() & exact.isnan())
    infinite = value.isinf() & exact.isfinite() & (value.sign() == exact.sign())
    missing = (overflow - exact.abs()).clamp_(min=0)
    error = torch.where(infinite, missing, error)
    wrong = ~error.isfinite() & ~agrees
    error = torch.where(wrong, torch.inf, error)
    return torch.where(agrees, 0.0, error)
