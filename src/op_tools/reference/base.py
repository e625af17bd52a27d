"""One call as often and as exactly as a verdict asks for it: in its own dtypes, in float64, and with moved inputs.

To judge something else than a PyTorch call (a DIOPI function, a kernel of a serving framework), subclass `Reference`:
set the inputs (`args`, `kwargs`, `grad_outputs`) and say in `evaluate` how to get flat results from inputs. Everything
that a verdict asks (`own`, `truth`, `perturbed`, `variant`) follows from that:

    class Doubled(Reference):
        name = "doubled"

        def __init__(self, x):
            self.args = (x,)

        def evaluate(self, args, kwargs, grad_outputs, *, upcast):
            return [args[0] + args[0]]

`own_results` may be overridden where the first evaluation has more to note than its results. `func` and `name` let the
verdict use what it knows of the function (how many terms it sums, which positions tie); without them it knows nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from op_tools.reference.perturbation import ROUNDING, Factors, InnerRoundings, shortened
from op_tools.trees import flat_tensors, map_leaves

__all__ = ["Reference", "upcast"]

Inputs = tuple[Sequence[Any], Mapping[str, Any], Sequence[torch.Tensor | None] | None]

_UPCAST = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}
_EXACT_DTYPES = (torch.float64, torch.complex128)
# A variant's inputs: so far off that every inner rounding falls anew, also where a function is flat; so little that
# nothing else changes.
_NUDGED_BITS = 13
_SIGNIFICANT_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


class Reference(ABC):
    """The reference's side of one judged call; every answer is computed when asked for and kept.

    Answers are flat lists that line up with the results to be judged.
    """

    func: Callable[..., Any] | None = None
    name: str = ""
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    grad_outputs: Sequence[torch.Tensor | None] | None = None
    # Whether the results are gradients, whatever the function itself does.
    is_gradient: bool = False
    # Whether the function consists of several operators, each of which rounds.
    is_composite: bool = True

    _own: list[Any] | None = None
    _truth: list[Any] | None = None
    _truth_failed = False

    @abstractmethod
    def evaluate(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        grad_outputs: Sequence[torch.Tensor | None] | None,
        *,
        upcast: bool,
    ) -> list[Any]:
        """Flat results for these inputs. `upcast`: the inputs are float64, and the results are to be. May raise."""

    def own_results(self) -> list[Any]:
        """The results for the inputs as they are. What it raises reaches the judge's caller."""
        return self.evaluate(self.args, self.kwargs, self.grad_outputs, upcast=False)

    # --- what a verdict asks ------------------------------------------------------------------------------

    def own(self) -> list[Any]:
        """The flat results in the call's own dtypes."""
        if self._own is None:
            self._own = self.own_results()
        return self._own

    def truth(self) -> list[Any] | None:
        """The same in float64; None where the reference has no such kernel."""
        if self._truth is None and not self._truth_failed:
            self._truth = self._upcast_results(self._inputs, self.own(), upcast)
            self._truth_failed = self._truth is None
        return self._truth

    def perturbed(self, seed: int) -> list[Any] | None:
        """The truth of inputs that each moved by about one rounding of float32 (RMS).

        In composites the results of inner operators move too: they are rounded as well.
        """
        factors = Factors(seed, ROUNDING)
        with InnerRoundings(factors) if self.is_composite else nullcontext():
            return self._upcast_results(
                self._inputs, self.own(), lambda value: factors.applied(upcast(value))
            )

    def moved_inside(self, seed: int) -> list[Any] | None:
        """As `perturbed`, where what fused operators sum up inside is rounded too, and moves; None where nothing is fused."""
        factors = Factors(seed, ROUNDING)
        with InnerRoundings(factors, fused=True) as roundings:
            moved = self._upcast_results(
                self._inputs, self.own(), lambda value: factors.applied(upcast(value))
            )
        return moved if roundings.has_fused else None

    def moved_alone(self) -> Iterator[list[Any] | None]:
        """The truth with one argument after the other moved by one rounding, and all others as they are.

        All there is to know of a function element by element: how far each of its inputs moves it.
        """
        args, kwargs, grads = self._inputs
        for argument in (*args, *kwargs.values(), *([] if grads is None else [grads])):
            moved = {id(tensor) for tensor in flat_tensors((argument,), {}) if tensor.is_floating_point()}
            if moved:
                yield self._upcast_results(self._inputs, self.own(), partial(_moved, moved))

    def variant(self, seed: int) -> tuple[list[Any], list[Any]] | None:
        """(own, truth) of inputs that differ by a few units in the last place of a half dtype; None where that fails.

        The values differ from the call's, their errors are of the same kind: one more sample of what correct arithmetic
        does here.
        """

        def nudged(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or value.dtype not in _SIGNIFICANT_BITS:
                return value
            step = 2.0 ** (1 - min(_SIGNIFICANT_BITS[value.dtype], _NUDGED_BITS))
            return Factors(seed, step).applied(value.double()).to(value.dtype)

        inputs = _changed(self._inputs, nudged)
        try:
            own = self.evaluate(*inputs, upcast=False)
        except Exception:  # values that only just fitted: one sample less
            return None
        truth = self._upcast_results(inputs, own, upcast)
        return None if truth is None else (own, truth)

    def shortened(self, bits: int, *, nearest: bool) -> list[Any] | None:
        """The truth of inputs of so many significant bits: what units that multiply short numbers compute."""
        return self._upcast_results(
            self._inputs, self.own(), lambda value: shortened(upcast(value), bits, nearest=nearest)
        )

    # --- how ----------------------------------------------------------------------------------------------

    @property
    def _inputs(self) -> Inputs:
        return self.args, self.kwargs, self.grad_outputs

    def _upcast_results(
        self, inputs: Inputs, own: list[Any], change: Callable[[Any], Any]
    ) -> list[Any] | None:
        """The results with every input changed; None where that does not run or is not float64 at the end."""
        changed = _changed(inputs, change)
        for attempt in (None, _integers_upcast):
            given = changed if attempt is None else _changed(changed, attempt)
            try:
                found = self.evaluate(*given, upcast=True)
            except Exception:  # no such kernel
                continue
            if len(found) == len(own):
                found = [_with_dtype_of(mine, value) for mine, value in zip(own, found, strict=True)]
                if all(_is_exact(mine, value) for mine, value in zip(own, found, strict=True)):
                    return found
        return None


def _moved(which: set[int], value: Any) -> Any:
    return upcast(value) * (1 + ROUNDING) if id(value) in which else upcast(value)


def _changed(inputs: Inputs, change: Callable[[Any], Any]) -> Inputs:
    """Every leaf changed once: where a tensor is given twice (`x @ x`, `x.sub_(x)`), both stay one tensor."""
    changed: dict[int, Any] = {}

    def once(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return change(value)
        if id(value) not in changed:
            new = change(value)
            if value.requires_grad and new is not value:
                new = new.detach().requires_grad_()
            changed[id(value)] = new
        return changed[id(value)]

    args, kwargs, grads = inputs
    return (
        map_leaves(tuple(args), once),
        map_leaves(dict(kwargs), once),
        None if grads is None else [once(grad) for grad in grads],
    )


def upcast(value: Any) -> Any:
    """Floating tensors and dtypes in float64, complex ones in complex128; anything else as it is."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            return value.to(torch.float64)
        return value.to(torch.complex128) if value.is_complex() else value
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else _UPCAST.get(value, value)
    return value


def _integers_upcast(value: Any) -> Any:
    """Where only integers go in and floats come out (a division, a mean), they are what must be exact."""
    integer = isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
    return value.to(torch.float64) if integer else value


def _with_dtype_of(own: Any, value: Any) -> Any:
    """Whole numbers that stand for floats are exact in float64 as they are, and floats in complex128."""
    if not isinstance(own, torch.Tensor) or not isinstance(value, torch.Tensor):
        return value
    if own.is_floating_point() and not (value.is_floating_point() or value.is_complex()):
        return value.to(torch.float64)
    return value.to(torch.complex128) if own.is_complex() and value.dtype == torch.float64 else value


def _is_exact(own: Any, value: Any) -> bool:
    if not isinstance(own, torch.Tensor) or not (own.is_floating_point() or own.is_complex()):
        return True
    return isinstance(value, torch.Tensor) and value.dtype in _EXACT_DTYPES
