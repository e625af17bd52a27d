"""How near two values are by the fixed tolerances alone, and verdicts that need no judging."""

from __future__ import annotations

import math
from typing import Any

import torch

from op_tools.verdict import Verdict
from op_tools.verdict.tolerance import Tolerance

__all__ = ["against", "equal", "failed", "identical", "parts_of", "skipped"]


def identical(left: Any, right: Any) -> bool:
    """Equal bit for bit, where every NaN is like every other."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return bool(left == right) or (_is_nan(left) and _is_nan(right))
    if left.shape != right.shape or left.dtype != right.dtype or left.layout != right.layout:
        return False
    if left.layout is not torch.strided:
        return _identical_sparse(left.detach(), right.detach())
    if left.is_floating_point() and left.element_size() == 1:  # float8 has no comparison
        left, right = left.float(), right.float()
    if torch.equal(left, right):
        return True
    if not (left.is_floating_point() or left.is_complex()):
        return False
    return bool(((left == right) | (left.isnan() & right.isnan())).all())


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors with memory of which a tensor consists: its indices and values where it is sparse."""
    if tensor.layout is torch.strided:
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []


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


def against(result: Any, expected: Any, tolerance: Tolerance) -> Verdict:
    """The fixed-tolerance columns alone: there is no reference for what another device once gave."""
    if not isinstance(result, torch.Tensor) or not isinstance(expected, torch.Tensor):
        close = identical(result, expected)
        return failed("" if close else f"{result} where {expected} was captured", tolerance)
    if result.shape != expected.shape:
        text = f"Inconsistent shapes: {tuple(result.shape)} {tuple(expected.shape)}"
        return failed(text, tolerance)
    info = "" if result.dtype == expected.dtype else f"Inconsistent dtypes: {result.dtype} {expected.dtype}"
    wide = torch.complex128 if result.is_complex() or expected.is_complex() else torch.float64
    a, b = (value.to_dense() if value.layout is not torch.strided else value for value in (result, expected))
    a, b = a.to(wide).reshape(-1), b.to(wide).reshape(-1)
    difference = (a - b).abs()
    scale = b.abs()
    close = bool(torch.isclose(a, b, atol=tolerance.atol, rtol=tolerance.rtol, equal_nan=True).all())
    return Verdict(
        status="pass" if close else "fail",
        reason="" if close else "differs from what was captured",
        allclose=close,
        cosine_similarity=_cosine(a, b),
        max_abs_diff=_largest(difference),
        max_relative_diff=_largest(difference / scale.clamp_min(_smallest_normal(expected))),
        atol=tolerance.atol,
        rtol=tolerance.rtol,
        error_info=info,
    )


def _smallest_normal(tensor: torch.Tensor) -> float:
    number = tensor.is_floating_point() or tensor.is_complex()
    return torch.finfo(tensor.dtype).smallest_normal if number else 1.0


def _largest(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _cosine(left: torch.Tensor, right: torch.Tensor) -> float:
    size = float(left.abs().square().sum().sqrt() * right.abs().square().sum().sqrt())
    if not size or not math.isfinite(size):
        return 1.0 if identical(left, right) else math.nan
    return float(torch.vdot(left, right).real) / size


def equal(tolerance: Tolerance) -> Verdict:
    return Verdict("same", "", True, 1.0, 0.0, 0.0, tolerance.atol, tolerance.rtol)


def failed(text: str, tolerance: Tolerance) -> Verdict:
    nan = math.nan
    return Verdict("fail", text, False, nan, nan, nan, tolerance.atol, tolerance.rtol, error_info=text)


def skipped(text: str) -> Verdict:
    return Verdict("skipped", text, True, math.nan, math.nan, math.nan, 0.0, 0.0, error_info=text)
