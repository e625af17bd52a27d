"""The reference of one case, as often and as exactly as the verdict asks for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from diopi.conformance.references import evaluate
from diopi.conformance.references.random import Drawn
from diopi.table import Entry
from diopi.table.schema import DTYPE_GROUPS
from op_tools.reference import Reference

_HALF_DTYPES = (torch.float16, torch.bfloat16)
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
    """One flat result: the argument it belongs to, and its index if that is a list."""

    argument: str
    position: int | None = None

    @property
    def title(self) -> str:
        return self.argument if self.position is None else f"{self.argument}[{self.position}]"


class _Named:
    """A function with a name, for the rules of the verdict that go by it."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{self.__name__} is only a name here: ReferenceRun evaluates")


class ReferenceRun(Reference):
    """The reference function of one case: flat lists of what is judged, one for each of `slots`.

    Written values that are drawn at random (`drawn`) or that the reference leaves open are not among them.
    """

    def __init__(self, entry: Entry, arguments: Mapping[str, Any], dtype: str | None = None) -> None:
        """`dtype`: what the case is about."""
        self._entry = entry
        self._dtype = dtype
        self.kwargs: Mapping[str, Any] = dict(arguments)
        overload = entry.aten[0] if entry.aten else entry.name.removeprefix("diopi").lower()
        self.name = overload.partition(".")[0]
        self.func = _Named(self.name.rstrip("_"))
        self.is_composite = entry.tolerance == "accumulate" or _composite(entry.reference or "")
        self.slots: list[Slot] = []
        self.drawn: dict[str, Drawn] = {}
        self.values: dict[str, Any] = {}
        """Written argument -> its value in the call's dtypes: tensor, list of tensors, number or None."""

    def own_results(self) -> list[Any]:
        """In the call's own dtypes; NoReferenceError where torch cannot."""
        found: list[Any] = []
        for name, value in self._written(self.kwargs).items():
            if isinstance(value, Drawn):
                self.drawn[name], self.values[name] = value, value.value
                continue
            self.values[name] = value
            for position, item in enumerate(value) if isinstance(value, list) else ((None, value),):
                if item is not None:
                    self.slots.append(Slot(name, position))
                    found.append(item)
        return found

    def evaluate(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], grad_outputs: Any, *, upcast: bool
    ) -> list[Any]:
        if not upcast:
            return self._flat(self._written(kwargs))
        values = evaluate(self._entry, self._protected(kwargs))
        return self._flat(dict(zip((a.name for a in self._entry.written()), values, strict=True)))

    def _flat(self, written: Mapping[str, Any]) -> list[Any]:
        found: list[Any] = []
        for name, value in written.items():
            if name not in self.drawn and not isinstance(value, Drawn):
                found += [
                    v for v in (value if isinstance(value, (list, tuple)) else [value]) if v is not None
                ]
        return [v.detach() if isinstance(v, torch.Tensor) else v for v in found]

    def _written(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Written argument -> its value, in the dtypes that the arguments ask for.

        Where torch's CPU has no kernel for half dtypes, in float32 and rounded afterwards.
        """
        rounded_to: torch.dtype | None = None
        try:
            values = evaluate(self._entry, self._protected(arguments))
        except Exception as error:
            if not any(tensor.dtype in _HALF_DTYPES for tensor in tensors_in(arguments.values())):
                raise self._no_reference(error) from error
            try:
                values = evaluate(self._entry, self._protected(_mapped(arguments, _single)))
            except Exception:
                raise self._no_reference(error) from error
            rounded_to = _only_half_dtype(arguments)
        names = [argument.name for argument in self._entry.written()]
        return {
            name: self._as_written(name, value, arguments.get(name), rounded_to)
            for name, value in zip(names, values, strict=True)
        }

    def _no_reference(self, error: Exception) -> NoReferenceError:
        message = f"the reference of {self._entry.name} raised {type(error).__name__}: {_first_line(error)}"
        return NoReferenceError(message, self._may_be_refused(error))

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

    def _as_written(self, name: str, value: Any, template: Any, rounded_to: torch.dtype | None) -> Any:
        """Shape and dtype are those of the tensor that the case gives, if it gives one."""
        if isinstance(value, Drawn):
            return replace(value, value=self._as_written(name, value.value, template, rounded_to))
        if isinstance(value, (list, tuple)):
            templates = template if isinstance(template, (list, tuple)) else [None] * len(value)
            if len(templates) != len(value):
                raise NoReferenceError(
                    f"the case gives {len(templates)} tensors as {name}, the reference has {len(value)}",
                    False,
                )
            return [
                self._as_written(name, item, like, rounded_to)
                for item, like in zip(value, templates, strict=True)
            ]
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
        return value.to(rounded_to) if rounded_to is not None and value.dtype == torch.float32 else value


def _only_half_dtype(arguments: Mapping[str, Any]) -> torch.dtype | None:
    """The half dtype of the call, if all its float tensors have it."""
    found = {v.dtype for v in tensors_in(arguments.values()) if v.is_floating_point()}
    return found.pop() if len(found) == 1 and found <= set(_HALF_DTYPES) else None


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
    changed: dict[int, Any] = {}

    def once(value: Any) -> Any:
        if id(value) not in changed:
            changed[id(value)] = change(value)
        return changed[id(value)]

    return {name: _changed(value, once) for name, value in arguments.items()}


def _single(value: torch.Tensor) -> torch.Tensor:
    return value.float() if value.dtype in _HALF_DTYPES else value
