"""The promised columns of a comparison: allclose, cosine similarity, largest differences."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import torch

from op_tools.trees import parts_of
from op_tools.verdict.rounding import format_of


def compared(
    result: torch.Tensor, reference: torch.Tensor, atol: float, rtol: float
) -> tuple[bool, float, float, float]:
    """(allclose, cosine similarity, largest absolute difference, largest relative difference); NaN equals NaN."""
    got, expected = _plain(result), _plain(reference)
    if got.dtype != expected.dtype:
        got, expected = got.double(), expected.double()
    if not got.numel():
        return True, 1.0, 0.0, 0.0
    difference = (got - expected).abs_()
    largest = float(difference.amax())
    if not math.isfinite(largest):
        agrees = (got == expected) | (got.isnan() & expected.isnan())
        difference = torch.where(agrees, 0.0, difference).nan_to_num_(math.inf, math.inf)
        largest = float(difference.amax())
    size = expected.abs()
    close = largest <= atol or float((difference - size.mul(rtol)).amax()) <= atol
    form = format_of(reference.dtype)
    least = form.smallest_normal if form is not None else 1.0
    relative = float(difference.div_(size.clamp_(min=least)).nan_to_num_(math.inf, math.inf).amax())
    return close, cosine_similarity(got, expected), largest, relative


def _plain(value: torch.Tensor) -> torch.Tensor:
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    exact_enough = value.is_floating_point() and value.dtype != torch.float64
    return value.to(torch.float32 if exact_enough else torch.float64).reshape(-1)


def cosine_similarity(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Of two flat tensors of one dtype: 1 where both are zero, 0 where one is."""
    product, squares = float(got @ expected), float(got @ got) * float(expected @ expected)
    if not math.isfinite(squares) or squares == 0:
        given = got, expected
        got, expected = (value.double().nan_to_num(0, 0, 0) for value in given)
        largest = max(float(got.abs().amax()), float(expected.abs().amax()))
        if largest == 0:
            return float(torch.equal(*given))
        got, expected = got / largest, expected / largest
        product, squares = float(got @ expected), float(got @ got) * float(expected @ expected)
    return min(1.0, product / math.sqrt(squares)) if squares > 0 else 0.0


def equal(result: torch.Tensor, reference: torch.Tensor) -> bool:
    """Bit-equal but for the sign of zero; NaN equals NaN. Both have one shape, dtype and device."""
    if _same_bytes(result, reference):
        return True
    if reference.is_floating_point() and reference.element_size() == 1:
        result, reference = result.float(), reference.float()
    if torch.equal(result, reference):
        return True
    if not (reference.is_floating_point() or reference.is_complex()):
        return False
    total = complex(reference.sum())
    if not (math.isnan(total.real) or math.isnan(total.imag)):
        return False
    return bool(((result == reference) | (nan(result) & nan(reference))).all())


def other_zeros(result: torch.Tensor, reference: torch.Tensor) -> int:
    """How many zeros of two equal tensors have another sign."""
    if not reference.is_floating_point() or _same_bytes(result, reference):
        return 0
    return int(((reference == 0) & (result.signbit() != reference.signbit())).sum())


def identical(left: Any, right: Any) -> bool:
    """Two values of any kind, equal bit for bit but for the sign of zero; every NaN is like every other."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return bool(left == right) or (_is_nan(left) and _is_nan(right))
    if left.shape != right.shape or left.dtype != right.dtype or left.layout != right.layout:
        return False
    if left.layout is not torch.strided:
        return _identical_sparse(left.detach(), right.detach())
    return equal(left, right)


def _identical_sparse(left: torch.Tensor, right: torch.Tensor) -> bool:
    """By indices and values: a dense copy may have far more elements than a sparse tensor has memory."""
    mine, other = parts_of(left), parts_of(right)
    if not mine:
        return identical(left.to_dense(), right.to_dense())
    if all(map(identical, mine, other)):
        return True
    if left.layout is not torch.sparse_coo or (left.is_coalesced() and right.is_coalesced()):
        return False
    # One element may be several entries, in any order.
    return _identical_sparse(left.coalesce(), right.coalesce())


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | complex) and value != value  # noqa: PLR0124 - NaN alone differs from itself


def nan(value: torch.Tensor) -> torch.Tensor:
    """Where a value of any dtype is NaN."""
    if value.is_floating_point() or value.is_complex():
        return value.isnan()
    return torch.zeros_like(value, dtype=torch.bool)


def _memory_comparison() -> Callable[[int, int, int], int] | None:
    """C's memcmp: ten times as fast as an elementwise comparison, and most results of a good device are equal."""
    try:
        compare = ctypes.CDLL(None).memcmp
    except (OSError, TypeError, AttributeError):
        return None
    compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    compare.restype = ctypes.c_int
    return compare


_memcmp = _memory_comparison()


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    if _memcmp is None or a.device.type != "cpu" or a.is_conj() or b.is_conj() or a.is_neg() or b.is_neg():
        return False
    if not (a.is_contiguous() and b.is_contiguous()):
        if a.stride() != b.stride():
            return False
        order = sorted(range(a.dim()), key=a.stride().__getitem__, reverse=True)
        a, b = a.permute(order), b.permute(order)
        if not a.is_contiguous():
            return False
    return _memcmp(a.data_ptr(), b.data_ptr(), a.numel() * a.element_size()) == 0
