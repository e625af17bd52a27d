"""Who is right when device and CPU disagree? The same call in a wider dtype, on the CPU, from the same inputs.

A CPU kernel for half precision may round between its steps where a device does not, and a float32 sum depends on its
order. Where the numbers differ, the call is made again in float64 (float32 where the CPU has no float64 kernel) and
rounded once to the dtype of the result. A device that agrees with that within the tolerance of the dtype is right. Where
it does not, the CPU may be as far off: then op_tools' verdict says whether the device's error is one that correct
arithmetic in that dtype can have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from _ditorch.torch_tests.opinfo.compare import Mismatch, Tolerance, check_values
from op_tools import verdict
from op_tools.categories import Category, category_of
from op_tools.reference import Reference

__all__ = ["UpcastReference", "can_upcast", "category_for"]

_REAL = (torch.float64, torch.float32)
_COMPLEX = (torch.complex128, torch.complex64)
_ROUNDINGS = 64  # of the dtype: the CPU's own error, as a whole, may be so large and still be rounding
Agreement = Literal["", "wider", "verdict"]


def can_upcast(dtype: torch.dtype) -> bool:
    """Whether there is a wider dtype to ask."""
    return (dtype.is_floating_point or dtype.is_complex) and dtype not in (_REAL[0], _COMPLEX[0])


class UpcastReference(Reference):
    """One call whose numbers differ.

    `run` gives the result or an exception; `low` is the dtype of the pair: only what is wider than it is asked.
    """

    def __init__(
        self,
        run: Callable[[Any], Any],
        arguments: Any,
        cpu: Any,
        device: Any,
        low: torch.dtype,
        category: Category = "other",
        is_gradient: bool = False,
    ) -> None:
        self.run = run
        self.args = (arguments,)
        self.cpu = cpu
        self.device = device
        self.low = low
        self.category = category
        self.is_gradient = is_gradient

    def agreement(self, tolerance: Tolerance) -> Agreement:
        """Whether the device agrees with the wider call; if so by which rule."""
        for level in range(len(_REAL)):
            if _REAL[level].itemsize <= self.low.to_real().itemsize:
                continue
            upcast = self._upcast_result(level)
            if upcast is None:
                continue
            if self._close(upcast, tolerance):
                return "wider"
            if level == 0:
                self._truth = _tensors(upcast)
            return "verdict" if level == 0 and self._plausible() else ""
        return ""

    def _upcast_result(self, level: int) -> Any:
        """The result of the call in a wider dtype; None where it only exists in the low one."""
        try:
            found = self.run(tree_map(lambda leaf: _upcast(leaf, level), self.args[0]))
        except Exception:
            return None
        return None if isinstance(found, Exception) else found

    def _close(self, upcast: Any, tolerance: Tolerance) -> bool:
        upcast_leaves, upcast_form = tree_flatten(upcast)
        cpu_leaves, cpu_form = tree_flatten(self.cpu)
        if upcast_form != cpu_form:
            return False
        try:
            for reference, mine, got in zip(upcast_leaves, cpu_leaves, tree_leaves(self.device), strict=True):
                if not _leaf_agrees(reference, mine, got, tolerance):
                    return False
        except Mismatch:
            return False
        return True

    # op_tools' verdict

    def _plausible(self) -> bool:
        results = [leaf.detach().cpu() for leaf in tree_leaves(self.device) if isinstance(leaf, torch.Tensor)]
        own, exact = self.own(), self.truth()
        if exact is None or len(own) != len(results) or len(own) != len(tree_leaves(self.cpu)):
            return False
        pairs = list(zip(own, exact, strict=True)) if len(own) == len(exact) else []
        if not pairs or not all(_alike(truth, mine) and _same_question(mine, truth) for mine, truth in pairs):
            return False
        bound = verdict.tolerance_for("", self.low)
        found = verdict.judge_all(results, self, category=self.category, tolerance=bound)
        return all(one.status in ("same", "pass") for one in found)

    def own_results(self) -> list[Any]:
        return _tensors(self.cpu)

    def evaluate(self, args: Any, kwargs: Any, grad_outputs: Any, *, upcast: bool) -> list[Any]:
        found = self.run(tree_map(_copied, args[0]))
        if isinstance(found, Exception):
            raise found
        return _tensors(found)

    def variant(self, seed: int) -> None:
        """None: the narrow call was the CPU's as it is, and is not made again."""
        return None


def _same_question(own: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether the CPU's narrow result is near the upcast one: other random numbers, or vectors of another sign, are not."""
    if not (own.is_floating_point() or own.is_complex()):
        return torch.equal(own, exact)
    size = exact.abs().to(torch.float64)
    error = (own.to(exact.dtype) - exact).abs().to(torch.float64)
    finite = error.isfinite()
    bound = _ROUNDINGS * torch.finfo(own.dtype).eps * float(size[finite].norm())
    return bool(error[finite].norm() <= bound)


def _upcast(value: Any, level: int) -> Any:
    if isinstance(value, torch.dtype):
        return _upcast_dtype(value, level)
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return value
    dtype = _upcast_dtype(value.dtype, level)
    return (
        _copied(value)
        if dtype == value.dtype
        else value.detach().to(dtype).requires_grad_(value.requires_grad)
    )


def _copied(value: Any) -> Any:
    """A leaf of its own: the call may write to its arguments."""
    return (
        value.detach().clone().requires_grad_(value.requires_grad)
        if isinstance(value, torch.Tensor)
        else value
    )


def _upcast_dtype(dtype: torch.dtype, level: int) -> torch.dtype:
    if dtype.is_complex:
        return _COMPLEX[level]
    return _REAL[level] if dtype.is_floating_point else dtype


def _leaf_agrees(reference: Any, mine: Any, got: Any, tolerance: Tolerance) -> bool:
    if not isinstance(mine, torch.Tensor):
        if isinstance(mine, float) and isinstance(reference, float) and isinstance(got, float):
            want, found = (torch.tensor(value, dtype=torch.float64) for value in (reference, got))
            check_values(want, found, tolerance, "wider")
            return True
        return bool(mine == got)
    if not isinstance(reference, torch.Tensor) or reference.shape != mine.shape:
        return False
    if mine.layout != torch.strided or reference.layout != torch.strided:
        return False
    rounded = reference.detach().resolve_conj().resolve_neg().to(mine.dtype)
    check_values(rounded, got.detach().cpu(), tolerance, "wider")
    return True


def _tensors(tree: Any) -> list[Any]:
    return [leaf.detach() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _alike(upcast: torch.Tensor, mine: torch.Tensor) -> bool:
    return upcast.shape == mine.shape and upcast.layout == mine.layout == torch.strided


def category_for(op: Any) -> Category:
    """What kind of operator an entry of the database is for the verdict; unknown ones are arithmetic."""
    try:
        return category_of(op.op, op.name)
    except Exception:
        return "other"
