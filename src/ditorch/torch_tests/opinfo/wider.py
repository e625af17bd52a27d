"""Who is right when device and CPU disagree? The same call in a wider dtype, on the CPU, from the same inputs.

A CPU kernel for half precision may round between its steps where a device does not, and a float32 sum depends on its
order. Where the numbers differ, the call is made again in float64 (float32 where the CPU has no float64 kernel) and
rounded once to the dtype of the result. A device that agrees with that within the tolerance of the dtype is right. Where
it does not, the CPU may be as far off: then op_tools' verdict says whether the device's error is one that correct
arithmetic in that dtype can have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from ditorch.torch_tests.opinfo.compare import Mismatch, Tolerance, check_values
from op_tools import verdict
from op_tools.categories import Category, category_of
from op_tools.reference.perturbation import ROUNDING, Factors, InnerRoundings

__all__ = ["Wider", "can_be_wider", "category_for"]

_REAL = (torch.float64, torch.float32)
_COMPLEX = (torch.complex128, torch.complex64)
_ROUNDINGS = 64  # of the dtype: the CPU's own error, as a whole, may be so large and still be rounding
Agreement = Literal["", "wider", "verdict"]


def can_be_wider(dtype: torch.dtype) -> bool:
    """Whether there is a wider dtype to ask."""
    return (dtype.is_floating_point or dtype.is_complex) and dtype not in (_REAL[0], _COMPLEX[0])


@dataclass
class Wider:
    """One call whose numbers differ. Implements op_tools' `Reference`.

    `run` gives the result or an exception; `low` is the dtype of the pair: only what is wider than it is asked.
    """

    run: Callable[[Any], Any]
    arguments: Any
    cpu: Any
    device: Any
    low: torch.dtype
    category: Category = "other"
    is_gradient: bool = False
    _truth: Any = None

    def agreement(self, tolerance: Tolerance) -> Agreement:
        """Whether the device agrees with the wider call; if so by which rule."""
        for level in range(len(_REAL)):
            if _REAL[level].itemsize <= self.low.to_real().itemsize:
                continue
            wide = self._wide(level)
            if wide is None:
                continue
            if self._close(wide, tolerance):
                return "wider"
            self._truth = wide if level == 0 else None
            return "verdict" if level == 0 and self._plausible() else ""
        return ""

    def _wide(self, level: int, change: Callable[[Any], Any] = lambda leaf: leaf) -> Any:
        """The result of the call in a wider dtype; None where it only exists in the low one."""
        try:
            found = self.run(tree_map(lambda leaf: change(_widened(leaf, level)), self.arguments))
        except Exception:
            return None
        return None if isinstance(found, Exception) else found

    def _close(self, wide: Any, tolerance: Tolerance) -> bool:
        wide_leaves, wide_form = tree_flatten(wide)
        cpu_leaves, cpu_form = tree_flatten(self.cpu)
        if wide_form != cpu_form:
            return False
        try:
            for reference, mine, got in zip(wide_leaves, cpu_leaves, tree_leaves(self.device), strict=True):
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
        if not all(_same_question(mine, truth) for mine, truth in zip(own, exact, strict=True)):
            return False
        bound = verdict.tolerance_for("", self.low)
        found = verdict.judge_all(results, self, category=self.category, tolerance=bound)
        return all(one.status in ("same", "pass") for one in found)

    def own(self) -> list[Any]:
        return _tensors(self.cpu)

    def truth(self) -> list[Any] | None:
        return _tensors_of_same_form(self._truth, self.own())

    def perturbed(self, seed: int) -> list[Any] | None:
        factors = Factors(seed, ROUNDING)
        with InnerRoundings(factors):
            wide = self._wide(0, lambda leaf: _moved(leaf, factors))
        return _tensors_of_same_form(wide, self.own())


def _same_question(own: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether the CPU's narrow result is near the wide one: other random numbers, or vectors of another sign, are not."""
    if not (own.is_floating_point() or own.is_complex()):
        return torch.equal(own, exact)
    wide = exact.abs().to(torch.float64)
    error = (own.to(exact.dtype) - exact).abs().to(torch.float64)
    finite = error.isfinite()
    bound = _ROUNDINGS * torch.finfo(own.dtype).eps * float(wide[finite].norm())
    return bool(error[finite].norm() <= bound)


def _widened(value: Any, level: int) -> Any:
    if isinstance(value, torch.dtype):
        return _wider_dtype(value, level)
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return value
    wide = _wider_dtype(value.dtype, level)
    copy = value.detach().clone() if wide == value.dtype else value.detach().to(wide)
    return copy.requires_grad_(value.requires_grad)


def _wider_dtype(dtype: torch.dtype, level: int) -> torch.dtype:
    if dtype.is_complex:
        return _COMPLEX[level]
    return _REAL[level] if dtype.is_floating_point else dtype


def _moved(value: Any, factors: Factors) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return factors.applied(value.detach()).requires_grad_(value.requires_grad)


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


def _tensors_of_same_form(tree: Any, own: list[Any]) -> list[Any] | None:
    found = _tensors(tree) if tree is not None else []
    if not found or len(found) != len(own):
        return None
    same = all(_alike(wide, mine) for wide, mine in zip(found, own, strict=True))
    return found if same else None


def _alike(wide: torch.Tensor, mine: torch.Tensor) -> bool:
    return wide.shape == mine.shape and wide.layout == mine.layout == torch.strided


def category_for(op: Any) -> Category:
    """What kind of operator an entry of the database is for the verdict; unknown ones are arithmetic."""
    try:
        return category_of(op.op, op.name)
    except Exception:
        return "other"
