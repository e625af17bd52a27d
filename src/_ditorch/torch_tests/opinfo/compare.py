"""Is the device's answer the CPU's? Structure, type, dtype, shape, device, aliasing, then values.

Values are held against `torch.testing`'s default tolerances for their dtype, or the operator's own
``toleranceOverride`` where that is wider; integers and booleans must be equal. Equal bits pass at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._comparison import default_tolerances
from torch.utils._pytree import tree_flatten

__all__ = ["Mismatch", "ResultComparison", "Tolerance", "ValueMismatch", "check_values", "declared_tolerance"]


class Mismatch(Exception):
    """The device's answer differs; the text says how."""


class ValueMismatch(Mismatch):
    """The form is right and numbers differ: the CPU may be the one that is off."""


@dataclass(frozen=True)
class Tolerance:
    """What is allowed beside the default of the dtype; the wider of the two holds."""

    rtol: float = 0.0
    atol: float = 0.0

    def or_wider(self, rtol: float, atol: float) -> Tolerance:
        return Tolerance(max(self.rtol, rtol), max(self.atol, atol))


def declared_tolerance(op: Any, dtype: torch.dtype, device_type: str) -> Tolerance:
    """The widest tolerance the operator declares for comparing a device with the CPU; zero if none."""
    declared: list[Any] = []
    for decorator in getattr(op, "decorators", ()):
        if hasattr(decorator, "is_active"):
            if decorator.is_active("TestCommon", "test_compare_cpu", device_type, dtype, {}):
                declared += decorator.decorators
        else:
            declared.append(decorator)
    tables = [entry.d for entry in declared if isinstance(getattr(entry, "d", None), dict)]
    found = [table[dtype] for table in tables if hasattr(table.get(dtype), "rtol")]
    return Tolerance(max((t.rtol for t in found), default=0.0), max((t.atol for t in found), default=0.0))


@dataclass
class ResultComparison:
    """Compares the result of one sample; raises `Mismatch`."""

    device_type: str
    tolerance: Tolerance = Tolerance()
    values: bool = True  # False: numbers are undefined or random, only the form is compared
    cpu_storages: frozenset[int] = frozenset()
    device_storages: frozenset[int] = frozenset()
    restrided: bool = False
    _differs: ValueMismatch | None = None  # the first numbers that differ

    def trees(self, cpu: Any, device: Any, what: str = "result") -> None:
        """Compare everything; `ValueMismatch` only if nothing but numbers differs."""
        cpu_leaves, cpu_form = tree_flatten(cpu)
        device_leaves, device_form = tree_flatten(device)
        if cpu_form != device_form:
            raise Mismatch(f"{what}: structure {device_form} instead of {cpu_form}")
        self._differs = None
        for index, (want, got) in enumerate(zip(cpu_leaves, device_leaves, strict=True)):
            self._leaf(want, got, what if len(cpu_leaves) == 1 else f"{what}[{index}]")
        if self._differs is not None:  # raised last: that numbers may be excused must not hide a wrong form
            raise self._differs

    def _leaf(self, want: Any, got: Any, what: str) -> None:
        if type(want) is not type(got):
            raise Mismatch(f"{what}: {type(got).__name__} instead of {type(want).__name__}")
        if isinstance(want, torch.Tensor):
            self._tensor(want, got, what)
        elif isinstance(want, torch.device):
            pass  # an operator that reports a device reports its own
        elif self.values and not _same_scalar(want, got):
            message = f"{what}: {got!r} instead of {want!r}"
            if not isinstance(want, (float, complex)):
                raise Mismatch(message)
            self._differs = self._differs or ValueMismatch(message)

    def _tensor(self, want: torch.Tensor, got: torch.Tensor, what: str) -> None:
        for name in ("dtype", "shape", "layout", "requires_grad"):
            if getattr(want, name) != getattr(got, name):
                raise Mismatch(f"{what}: {name} {getattr(got, name)} instead of {getattr(want, name)}")
        if got.device.type != self.device_type:
            raise Mismatch(f"{what}: is on {got.device}, not on {self.device_type}")
        if want.layout != torch.strided:
            self._parts(want, got, what)
            return
        self.restrided |= want.stride() != got.stride()
        self._aliasing(want, got, what)
        if self.values:
            try:
                # Some samples name a device of their own, so the CPU's side may not be on the CPU either.
                check_values(want.detach().cpu(), got.detach().cpu(), self.tolerance, what)
            except ValueMismatch as mismatch:
                self._differs = self._differs or mismatch

    def _aliasing(self, want: torch.Tensor, got: torch.Tensor, what: str) -> None:
        if want.numel() == 0:
            return
        is_view = want.untyped_storage()._cdata in self.cpu_storages
        if is_view != (got.untyped_storage()._cdata in self.device_storages):
            fact = ("a view", "a new tensor") if is_view else ("a new tensor", "a view")
            raise Mismatch(f"{what}: {fact[1]} instead of {fact[0]}")

    def _parts(self, want: torch.Tensor, got: torch.Tensor, what: str) -> None:
        if want.layout == torch.sparse_coo:
            if want.is_coalesced() != got.is_coalesced():
                raise Mismatch(f"{what}: coalesced: {got.is_coalesced()} instead of {want.is_coalesced()}")
            names: Iterable[str] = ("_indices", "_values")
        elif want.layout in (torch.sparse_csr, torch.sparse_bsr):
            names = ("crow_indices", "col_indices", "values")
        elif want.layout in (torch.sparse_csc, torch.sparse_bsc):
            names = ("ccol_indices", "row_indices", "values")
        else:
            raise Mismatch(f"{what}: no comparison for layout {want.layout}")
        for name in names:
            part_want, part_got = getattr(want.detach(), name)(), getattr(got.detach(), name)()
            self._tensor(part_want, part_got, f"{what}.{name}()")


def _same_scalar(want: Any, got: Any) -> bool:
    if isinstance(want, float) and math.isnan(want):
        return math.isnan(got)
    return bool(want == got)


def check_values(want: torch.Tensor, got: torch.Tensor, tolerance: Tolerance, what: str) -> None:
    """Both on the CPU, of one dtype and shape."""
    allowed_here = tolerance.or_wider(*default_tolerances(want.dtype))
    rtol, atol = allowed_here.rtol, allowed_here.atol
    want, got = _comparable(want), _comparable(got)
    if torch.equal(want, got):
        return
    if not (want.is_floating_point() or want.is_complex()):
        differing = want != got
        raise ValueMismatch(f"{what}: {_share(differing)} differ, {_first(differing, want, got)}")
    upcast = torch.complex128 if want.is_complex() else torch.float64
    want, got = want.to(upcast), got.to(upcast)
    differing = ~torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
    if not differing.any():
        return
    difference = (got - want).abs()
    difference[difference.isnan()] = 0
    relative = torch.where(want.abs() > 0, difference / want.abs(), difference).nan_to_num(posinf=torch.inf)
    largest = f"max abs {float(difference.max()):.3g}, max rel {float(relative.max()):.3g}"
    allowed = f"allowed rtol {rtol:.2g}, atol {atol:.2g}"
    raise ValueMismatch(
        f"{what}: {_share(differing)} differ, {largest} ({allowed}), {_first(differing, want, got)}"
    )


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """Dtypes without comparison kernels go to the nearest one that holds every value of theirs."""
    if tensor.dtype == torch.complex32:
        return tensor.to(torch.complex64)
    if tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1:
        return tensor.to(torch.float32)
    return tensor.resolve_conj().resolve_neg()


def _share(mask: torch.Tensor) -> str:
    return f"{int(mask.sum())} of {mask.numel()} elements"


def _first(mask: torch.Tensor, want: torch.Tensor, got: torch.Tensor) -> str:
    index = tuple(mask.nonzero()[0].tolist())
    return f"first {list(index)}: {got[index].item()} instead of {want[index].item()}"
