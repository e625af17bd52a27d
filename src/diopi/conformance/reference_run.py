"""The reference of one case, as often and as exactly as the verdict asks for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from diopi.conformance.references import evaluate
from diopi.conformance.references.random import Drawn
from diopi.table import Entry
from diopi.table.model import DTYPE_GROUPS
from op_tools.reference.perturbation import ROUNDING, Factors, InnerRoundings

_HALVES = (torch.float16, torch.bfloat16)
_WIDE = (torch.float64, torch.complex128)
_RAISED = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}
# Inputs of another last bit: far enough that inner roundings fall anew, near enough that nothing else changes.
_NUDGED_BITS = 13
_SIGNIFICANT = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
# What torch says where it has no kernel for a dtype; the type of the error depends on its version.
_NO_KERNEL = re.compile(r'"[^"]+" not implemented for ')


class NoReferenceError(RuntimeError):
    """The reference could not run a case. `expected`: torch has no kernel for its dtype, or the operator table does not
    name that dtype; otherwise the reference or the case is wrong."""

    def __init__(self, message: str, expected: bool) -> None:
        super().__init__(message)
        self.expected = expected


@dataclass(frozen=True, slots=True)
class Slot:
    """One flat result: the argument it belongs to, and its place if that is a list."""

    argument: str
    position: int | None = None

    @property
    def title(self) -> str:
        return self.argument if self.position is None else f"{self.argument}[{self.position}]"


class _Named:
    """A function with a name, for the rules of the verdict that go by it."""

    def __init__(self, name: str) -> None:
        self.__name__ = name


class ReferenceRun:
    """Fits `op_tools.verdict.Reference`: flat lists of what is judged, one for each of `slots`.

    Written values that are drawn at random (`drawn`) or that the reference leaves open are not among them.
    """

    grad_outputs = None
    args: tuple[Any, ...] = ()

    def __init__(self, entry: Entry, arguments: Mapping[str, Any], dtype: str | None = None) -> None:
        """`dtype`: what the case is about."""
        self._entry = entry
        self._dtype = dtype
        self.kwargs: Mapping[str, Any] = dict(arguments)
        overload = entry.aten[0] if entry.aten else entry.name.removeprefix("diopi").lower()
        self.name = overload.partition(".")[0]
        self.func = _Named(self.name.rstrip("_"))
        self.slots: list[Slot] = []
        self.drawn: dict[str, Drawn] = {}
        self.values: dict[str, Any] = {}
        """Written argument -> its value in the call's dtypes: tensor, list of tensors, number or None."""
        self._own: list[Any] | None = None
        self._truth: list[Any] | None = None
        self._truth_failed = False
        self._half: torch.dtype | None = (
            None  # what results in float32 are rounded to where halves had no kernel
        )

    # ---- what the verdict asks ----

    def own(self) -> list[Any]:
        """In the call's own dtypes; NoReferenceError where torch cannot."""
        if self._own is None:
            values = self._evaluated(self.kwargs)
            for argument, value in zip(self._entry.written(), values, strict=True):
                if isinstance(value, Drawn):
                    self.drawn[argument.name] = value
                taken = value.value if isinstance(value, Drawn) else value
                self.values[argument.name] = self._as_written(argument.name, taken)
            self._own = []
            for name, value in self.values.items():
                if name not in self.drawn:
                    self._keep(name, value)
        return self._own

    def _keep(self, name: str, value: Any) -> None:
        assert self._own is not None
        for position, item in enumerate(value) if isinstance(value, list) else ((None, value),):
            if item is not None:
                self.slots.append(Slot(name, position))
                self._own.append(item)

    def truth(self) -> list[Any] | None:
        """The same in float64; None where torch has no such kernel."""
        if self._truth is None and not self._truth_failed:
            self._truth = self._exact(_raised)
            self._truth_failed = self._truth is None
        return self._truth

    def perturbed(self, seed: int) -> list[Any] | None:
        """The truth of inputs that each moved by about one rounding of float32."""
        factors = Factors(seed, ROUNDING)
        inner = self._entry.tolerance == "accumulate" or _composite(self._entry.reference or "")
        with InnerRoundings(factors) if inner else nullcontext():
            return self._exact(lambda value: factors.applied(_raised(value)))

    def variant(self, seed: int) -> tuple[list[Any], list[Any]] | None:
        """(own, truth) of inputs that differ by a few units in the last place of a half."""

        def nudged(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or value.dtype not in _SIGNIFICANT:
                return value
            step = 2.0 ** (1 - min(_SIGNIFICANT[value.dtype], _NUDGED_BITS))
            return Factors(seed, step).applied(value.double()).to(value.dtype)

        other = ReferenceRun(self._entry, self._changed(nudged))
        try:
            own, truth = other.own(), other.truth()
        except NoReferenceError:
            return None
        return None if truth is None else (own, truth)

    def with_inputs(self, args: Any, kwargs: Mapping[str, Any], grad_outputs: Any) -> list[Any]:
        """The same function of other arguments, in the dtypes they have."""
        return self._flat(evaluate(self._entry, self._protected(kwargs)))

    # ---- how ----

    def _evaluated(self, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        """Where torch's CPU has no kernel for halves, in float32 and rounded afterwards."""
        try:
            return evaluate(self._entry, self._protected(arguments))
        except Exception as error:
            if any(tensor.dtype in _HALVES for tensor in tensors_in(arguments.values())):
                try:
                    found = evaluate(self._entry, self._protected(_mapped(arguments, _single)))
                    self._half = self._halves(arguments)
                    return found
                except Exception:
                    pass
            message = (
                f"the reference of {self._entry.name} raised {type(error).__name__}: {_first_line(error)}"
            )
            raise NoReferenceError(message, self._may_be_refused(error)) from error

    def _may_be_refused(self, error: Exception) -> bool:
        named = {name for group in self._entry.dtypes for name in DTYPE_GROUPS[group]}
        outside = self._dtype is not None and self._dtype not in named
        return outside or isinstance(error, NotImplementedError) or bool(_NO_KERNEL.search(str(error)))

    def _protected(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What the function updates is cloned: an expression may be written in place."""
        given = dict(arguments)
        for argument in self._entry.written():
            if self._entry.role(argument) in ("update", "updates") and given.get(argument.name) is not None:
                given[argument.name] = _changed(given[argument.name], torch.clone)
        return given

    def _as_written(self, name: str, value: Any) -> Any:
        """Shape and dtype are those of the tensor that the case gives, if it gives one."""
        template = self.kwargs.get(name)
        if isinstance(value, (list, tuple)):
            templates = template if isinstance(template, (list, tuple)) else [None] * len(value)
            if len(templates) != len(value):
                raise NoReferenceError(
                    f"the case gives {len(templates)} tensors as {name}, the reference has {len(value)}",
                    False,
                )
            return [self._like(name, item, like) for item, like in zip(value, templates, strict=True)]
        return self._like(name, value, template)

    def _like(self, name: str, value: Any, template: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        value = value.detach()
        if isinstance(template, torch.Tensor):
            if template.shape != value.shape:
                raise NoReferenceError(
                    f"the case gives {name} the shape {tuple(template.shape)}, the reference has {tuple(value.shape)}",
                    False,
                )
            return value.to(template.dtype)
        return value.to(self._half) if self._half is not None and value.dtype == torch.float32 else value

    def _halves(self, arguments: Mapping[str, Any]) -> torch.dtype | None:
        """The half dtype of the call, if all its float tensors have it."""
        found = {v.dtype for v in tensors_in(arguments.values()) if v.is_floating_point()}
        return found.pop() if len(found) == 1 and found <= set(_HALVES) else None

    def _flat(self, values: tuple[Any, ...]) -> list[Any]:
        found: list[Any] = []
        for argument, value in zip(self._entry.written(), values, strict=True):
            if argument.name in self.drawn or isinstance(value, Drawn):
                continue
            found += [v for v in (value if isinstance(value, (list, tuple)) else [value]) if v is not None]
        return [v.detach() if isinstance(v, torch.Tensor) else v for v in found]

    def _changed(self, change: Callable[[Any], Any]) -> dict[str, Any]:
        return _mapped(self.kwargs, change)

    def _exact(self, change: Callable[[Any], Any]) -> list[Any] | None:
        """The results with every input changed; None where that does not run or is not float64 at the end."""
        own = self.own()
        for attempt in (_unchanged, _integers_raised):
            try:
                found = self._flat(
                    evaluate(self._entry, self._protected(_mapped(self._changed(change), attempt)))
                )
            except Exception:
                continue
            if len(found) != len(own):
                continue
            raised = [_widened(mine, value) for mine, value in zip(own, found, strict=True)]
            if all(_is_exact(mine, value) for mine, value in zip(own, raised, strict=True)):
                return raised
        return None


@cache
def _composite(expression: str) -> bool:
    """Whether the expression rounds more than once: it computes with more than one function or operator."""
    nodes = list(ast.walk(ast.parse(expression or "None", mode="eval")))
    return sum(isinstance(node, (ast.Call, ast.BinOp)) for node in nodes) > 1


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]


def tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among values and in their lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """`change` applied to a tensor, or to the tensors of a list."""
    if isinstance(value, (list, tuple)):
        return [_changed(item, change) for item in value]
    return change(value) if isinstance(value, torch.Tensor) else value


def _mapped(arguments: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Every tensor changed once: where one is given twice (`x.sub_(x)`), both stay the same tensor."""
    known: dict[int, Any] = {}

    def once(value: Any) -> Any:
        if id(value) not in known:
            known[id(value)] = change(value)
        return known[id(value)]

    return {name: _changed(value, once) for name, value in arguments.items()}


def _single(value: torch.Tensor) -> torch.Tensor:
    return value.float() if value.dtype in _HALVES else value


def _raised(value: torch.Tensor) -> torch.Tensor:
    if value.is_floating_point():
        return value.to(torch.float64)
    return value.to(_RAISED.get(value.dtype, value.dtype))


def _unchanged(value: torch.Tensor) -> torch.Tensor:
    return value


def _integers_raised(value: torch.Tensor) -> torch.Tensor:
    """Where only integers go in and floats come out (a division, a mean), they are what must be exact."""
    return value if value.is_floating_point() or value.is_complex() else value.to(torch.float64)


def _widened(own: Any, value: Any) -> Any:
    """Whole numbers that are to be written into a float tensor are exact in float64 as they are."""
    both = isinstance(own, torch.Tensor) and isinstance(value, torch.Tensor)
    if both and own.is_floating_point() and not (value.is_floating_point() or value.is_complex()):
        return value.to(torch.float64)
    return value.to(torch.complex128) if both and own.is_complex() and value.dtype == torch.float64 else value


def _is_exact(own: Any, value: Any) -> bool:
    if not isinstance(own, torch.Tensor) or not (own.is_floating_point() or own.is_complex()):
        return True
    return isinstance(value, torch.Tensor) and value.dtype in _WIDE
