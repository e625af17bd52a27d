"""What goes wrong in kernels of any operator, as changes of a correct result; and right results that differ from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from op_tools.verdict.rounding import format_of, unit_in_last_place
from verdict_arithmetic import truncated

Tensor = torch.Tensor
Change = Callable[[Tensor, Tensor, torch.Generator], Tensor | None]

_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
# A common factor: so many units in the last place of 1. Below eight of float32's an approximation is no fault.
_FACTOR_UNITS = {torch.float32: (4, -4, 8), torch.bfloat16: (2, -2), torch.float16: (2, -2)}


def units_off(value: Tensor, exact: Tensor) -> Tensor:
    """The distance from the exact values in units of their last place; infinite where only one is finite."""
    form = format_of(value.dtype)
    assert form is not None
    exact, got = exact.reshape(-1).double(), value.reshape(-1).double()
    exact = torch.where(exact.abs() >= form.overflow, exact.sign() * torch.inf, exact)
    same = (got == exact) | (got.isnan() & exact.isnan())
    off = (got - exact).abs() / unit_in_last_place(exact, form)
    return torch.where(same, 0.0, off.nan_to_num(torch.inf, torch.inf))


# --- faults -------------------------------------------------------------------------------------------------


def common_factors(good: Tensor) -> Iterator[tuple[str, Tensor]]:
    form = format_of(good.dtype)
    assert form is not None
    for units in _FACTOR_UNITS[good.dtype]:
        factor = 1 + units * 2.0 ** (1 - form.bits)
        yield f"common factor 1{units * 2.0 ** (1 - form.bits):+.2g}", (good.double() * factor).to(good.dtype)


def _indices(good: Tensor, draw: torch.Generator, count: int = 1) -> Tensor:
    """Places of ordinary numbers."""
    flat = good.reshape(-1)
    places = ((flat != 0) & flat.isfinite()).nonzero().view(-1)
    return places[torch.randperm(len(places), generator=draw)[:count]]


def _moved(good: Tensor, places: Tensor, units: float, draw: torch.Generator) -> Tensor | None:
    form = format_of(good.dtype)
    assert form is not None
    if not len(places):
        return None
    wrong = good.clone().reshape(-1)
    value = wrong[places].double()
    sign = torch.randint(0, 2, (len(places),), generator=draw) * 2 - 1
    wrong[places] = (value + sign * units * unit_in_last_place(value, form)).to(good.dtype)
    return wrong.view(good.shape)


def one_element(good: Tensor, other: Tensor, draw: torch.Generator) -> Tensor | None:
    return _moved(good, _indices(good, draw), 8, draw)


def one_lane(good: Tensor, other: Tensor, draw: torch.Generator) -> Tensor | None:
    if good.numel() < 256:
        return None
    lane = int(torch.randint(32, (), generator=draw))
    return _moved(good, torch.arange(lane, good.numel(), 32), 8, draw)


def bit_flip(good: Tensor, other: Tensor, draw: torch.Generator) -> Tensor | None:
    """One bit of one element, of the upper half of its fraction or of its exponent."""
    places = _indices(good, draw)
    if not len(places):
        return None
    wrong = good.clone().reshape(-1)
    form = format_of(good.dtype)
    assert form is not None
    bits = wrong.view(_BITS[good.dtype])
    lowest, highest = form.bits // 2, good.element_size() * 8 - 2
    bits[places] ^= 1 << int(torch.randint(lowest, highest + 1, (), generator=draw))
    return wrong.view(good.shape)


def stale_tile(good: Tensor, other: Tensor, draw: torch.Generator) -> Tensor | None:
    if good.numel() < 128:
        return None
    wrong, start = good.clone().reshape(-1), int(torch.randint(good.numel() - 64, (), generator=draw))
    wrong[start : start + 64] = other.reshape(-1)[start : start + 64]
    return wrong.view(good.shape)


def unwritten_tail(good: Tensor, other: Tensor, draw: torch.Generator) -> Tensor | None:
    if good.numel() < 64:
        return None
    wrong = good.clone().reshape(-1)
    wrong[-(wrong.numel() % 64 or 16) :] = 0
    return wrong.view(good.shape)


def swapped_rows(good: Tensor, other: Tensor, draw: torch.Generator) -> Tensor | None:
    rows = good.clone().reshape(good.shape[0] if good.dim() else 1, -1)
    if len(rows) < 2:
        return None
    a, b = torch.randperm(len(rows), generator=draw)[:2].tolist()
    rows[[a, b]] = rows[[b, a]]
    return rows.view(good.shape)


def scaled_row(good: Tensor, other: Tensor, draw: torch.Generator) -> Tensor | None:
    """One row by a wrong scale, 16 units off."""
    form = format_of(good.dtype)
    assert form is not None
    rows = good.clone().reshape(good.shape[0] if good.dim() else 1, -1)
    if len(rows) < 2 or rows.shape[1] < 16:
        return None
    row = int(torch.randint(len(rows), (), generator=draw))
    rows[row] = (rows[row].double() * (1 + 2.0 ** (5 - form.bits))).to(good.dtype)
    return rows.view(good.shape)


def zeros(good: Tensor, other: Tensor, draw: torch.Generator) -> Tensor | None:
    return torch.zeros_like(good)


def clamped_infinity(good: Tensor, other: Tensor, draw: torch.Generator) -> Tensor | None:
    largest = torch.finfo(good.dtype).max
    return good.clamp(-largest, largest) if bool(good.isinf().any()) else None


def lost_nan(good: Tensor, other: Tensor, draw: torch.Generator) -> Tensor | None:
    return good.nan_to_num(0.0, torch.inf, -torch.inf) if bool(good.isnan().any()) else None


FAULTS: dict[str, Change] = {
    "one element 8 ulp": one_element,
    "one lane 8 ulp": one_lane,
    "bit flip": bit_flip,
    "stale tile": stale_tile,
    "unwritten tail": unwritten_tail,
    "swapped rows": swapped_rows,
    "one row by a wrong scale": scaled_row,
    "zeros": zeros,
    "Inf clamped": clamped_infinity,
    "NaN lost": lost_nan,
}


def faulty(good: Tensor, other: Tensor, exact: Tensor, draw: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """Every fault that applies to a result, with its class."""
    yield from common_factors(good)
    for name, change in FAULTS.items():
        wrong = change(good, other, draw)
        if wrong is not None:
            yield name, wrong
    yield "truncation", truncated(exact.double(), good.dtype)


def negative_zero(good: Tensor) -> Tensor | None:
    """-0 for 0: a fault of a copy."""
    return torch.where(good == 0, -torch.zeros_like(good), good) if bool((good == 0).any()) else None


# --- right results ------------------------------------------------------------------------------------------


def rounded(exact: Tensor, dtype: torch.dtype) -> Tensor:
    return exact.to(dtype)


def approximations(exact: Tensor, dtype: torch.dtype, draw: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """An elementary function to 2 units in the last place of float32: with scattered errors, and with a smooth curve of them."""
    form = format_of(torch.float32)
    assert form is not None
    exact = exact.double()
    unit = unit_in_last_place(exact, form)
    scattered = torch.rand(exact.shape, generator=draw, dtype=torch.float64) * 3 - 1.5
    # A polynomial's error swings a few times over an octave.
    phase = exact.abs().clamp(min=1e-300).log2() * 9.42 + 6.28 * float(torch.rand((), generator=draw))
    for name, error in (("scattered 2 ulp", scattered), ("smooth 2 ulp", phase.sin() * 1.5)):
        moved = exact + error * unit
        yield name, torch.where(exact.isfinite(), moved, exact).float().to(dtype)
