"""Samples of comparisons and logic."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from diopi.conformance.samples import Maker, Sample, number, samples
from diopi.conformance.samples.elementwise import LARGE, both_forms, operand, pairs, scalar_forms, written

_COMPARISONS = [f"diopi{name}" for name in ("Eq", "Ne", "Ge", "Gt", "Le", "Lt")]


def _equal_in_half(make: Maker, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors that agree at about half of their elements."""
    first, other = operand(make, *shape), make(*shape)
    return first, make.laid_out(torch.where(make.mask(*shape), first, other))


def _half_zero(make: Maker, *shape: int) -> torch.Tensor:
    """About half of the elements are zero."""
    return make.laid_out(make(*shape) * make.mask(*shape), written=written(make))


@samples(*both_forms(*_COMPARISONS))
def compared(make: Maker) -> Iterator[Sample]:
    """Broadcast, and with equal elements among them."""
    for first, second in pairs(make):
        yield {"input": operand(make, *first), "other": make(*second)}
    for shape in [(5, 7), (LARGE,)]:
        left, right = _equal_in_half(make, *shape)
        yield {"input": left, "other": right}
    if make.dtype == torch.float32 and not written(make):
        # operands of two dtypes, a result that is no boolean
        yield {"input": make(4, 6), "other": make.index(4, 6, low=-2, high=3)}
        yield {"input": make(4, 6), "other": make(4, 6), "out": make.out(4, 6)}


@samples(*scalar_forms(*_COMPARISONS))
def compared_with_number(make: Maker) -> Iterator[Sample]:
    """Numbers that occur among the elements, and others."""
    for shape, other in [((5, 7), 0), ((), 1), ((0, 4), 2), ((LARGE,), 3), ((2, 3, 9), True)]:
        yield {"input": operand(make, *shape), "other": other}
    yield {"input": operand(make, 4, 6), "other": number(make, -0.5, 7)}


@samples("diopiEqual")
def equal(make: Maker) -> Iterator[Sample]:
    """Equal ones, one element that differs, other shapes, nothing at all."""
    for shape in [(5, 7), (), (0, 3), (LARGE,)]:
        same = make(*shape)
        yield {"input": same, "other": make.laid_out(same.clone())}
    first = make(4, 6)
    other = first.clone()
    other[-1, -1] = other[-1, -1] == 0
    yield {"input": first, "other": make.laid_out(other)}
    yield {"input": make(3, 4), "other": make(4, 3)}
    yield {"input": make(3), "other": make(1)}


@samples(*both_forms("diopiLogicalAnd", "diopiLogicalOr"))
def logical(make: Maker) -> Iterator[Sample]:
    """Zeros are false; about half of the elements are."""
    for first, second in pairs(make):
        yield {"input": operand(make, *first), "other": make(*second)}
    yield {"input": _half_zero(make, 5, 7), "other": make.laid_out(make(5, 7) * make.mask(5, 7))}


@samples(*both_forms("diopiLogicalNot", "diopiBitwiseNot"), "diopiIsNan")
def negated(make: Maker) -> Iterator[Sample]:
    """Of one tensor."""
    for shape in [(5, 7), (2, 3, 4, 5), (), (0, 3), (LARGE,)]:
        yield {"input": operand(make, *shape)}
    yield {"input": _half_zero(make, 4, 6)}


@samples(*scalar_forms("diopiBitwiseAnd", "diopiBitwiseOr"))
def bitwise_with_number(make: Maker) -> Iterator[Sample]:
    """Masks of few and of many bits."""
    numbers = [3, 0, 85, 127]
    for shape in [(5, 7), (), (0, 4), (LARGE,)]:
        yield {"input": operand(make, *shape), "other": numbers[len(shape) % len(numbers)]}
    yield {"input": operand(make, 2, 3, 9), "other": True}
