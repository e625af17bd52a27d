"""Defines every operator for torch, once: `torch.ops.dlinfer.<name>`.

A call goes through torch's dispatcher (so that graphs, tools and profilers see it) to one Python function for each
operator, which checks the arguments and calls the kernel of the vendor that serves the device of the first argument.
"""

from __future__ import annotations

from typing import Any

import torch

from dlinfer.errors import DlinferArgumentError
from dlinfer.interface import OPERATORS
from dlinfer.interface.checks import INTEGERS
from dlinfer.interface.declaration import NAMESPACE, Kernel, Operator
from dlinfer.interface.sharing import Guard
from dlinfer.vendors.dispatch import RESOLVED, Values, resolve

# Held for the life of the process: torch forgets the operators with the library.
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")
# torch's names for tensors without strides. A dense tensor comes by none of them: nothing is asked of it.
_NOT_PLAIN = (
    "MkldnnCPU",
    "AutogradNestedTensor",
    *(
        f"{kind}{device}"
        for kind in ("Sparse", "SparseCsr", "Quantized")
        for device in ("CPU", "CUDA", "PrivateUse1")
    ),
)


def _dispatcher(operator: Operator) -> Kernel:
    """The function that torch calls. Everything is looked up beforehand: it runs for every layer of every token."""
    name, check, values = operator.name, operator.check, operator.values
    indices = tuple(operator.arguments.index(argument) for argument in operator.indices)
    check_memory = Guard(operator).check if operator.writes else None

    def call(*args: Any) -> Any:
        try:
            check(*args)
            first = args[0]
            device = "cpu" if first.is_cpu else first.device.type
        except (AttributeError, TypeError):
            _refuse_missing(operator, args)
            raise
        if check_memory is not None:
            check_memory(args)
        found = RESOLVED.get((name, device)) or resolve(name, device)
        if indices and found.values is not Values.TRUSTED:
            cheap = found.values is Values.CHEAP
            if not cheap or all(args[index].is_cpu for index in indices):
                values(*args)
        return found.kernel(*args)

    call.__name__ = call.__qualname__ = name
    return call


def _refuse_missing(operator: Operator, args: tuple[Any, ...]) -> None:
    """torch hands over None for a tensor that must be there; the check that met it knows nothing of that."""
    for argument, value in zip(operator.parsed.arguments, args, strict=False):
        if value is None and str(argument.type) == "Tensor":
            raise DlinferArgumentError(operator.name, argument.name, "is None, expected a tensor")


def _refusal(operator: Operator) -> Kernel:
    """The function that torch calls as soon as one tensor is no plain memory."""

    def call(*args: Any) -> Any:
        for argument, value in zip(operator.arguments, args, strict=False):
            kind = _kind(value) if isinstance(value, torch.Tensor) else None
            if kind is not None:
                raise DlinferArgumentError(
                    operator.name, argument, f"is {kind}, expected a plain (strided) tensor"
                )
        raise TypeError(
            f"dlinfer.{operator.name} takes plain tensors only"
        )  # another kind, which torch knows

    call.__name__ = call.__qualname__ = operator.name
    return call


def _kind(value: torch.Tensor) -> str | None:
    """What a tensor is instead of plain memory."""
    if value.is_nested:
        return "nested"
    if value.is_quantized:
        return "quantised by torch"
    return None if value.layout == torch.strided else str(value.layout)


def _fake(operator: Operator) -> Kernel:
    """The function that torch calls where nothing is computed: for graphs, and as soon as one tensor is on meta."""

    def call(*args: Any, **kwargs: Any) -> Any:
        _refuse_missing(operator, args)
        _refuse_mixed(operator, args)
        return operator.fake(*args, **kwargs)

    call.__name__ = call.__qualname__ = operator.name
    return call


def _refuse_mixed(operator: Operator, args: tuple[Any, ...]) -> None:
    """One meta tensor among real ones would leave results as uninitialised memory. Lengths and indices of a meta call may
    be real, as those of a device's may be on the CPU. The fake tensors of graphs say what device they stand for."""
    meta = args[0].device.type == "meta"
    for argument, value in zip(operator.arguments, args, strict=False):
        if not isinstance(value, torch.Tensor) or (value.device.type == "meta") == meta:
            continue
        if not meta or value.dtype not in INTEGERS:
            text = f"is on {value.device}, but {operator.arguments[0]} is on {args[0].device}"
            raise DlinferArgumentError(
                operator.name, argument, f"{text}: expected all of them on meta, or none"
            )


def _define() -> dict[str, Any]:
    overloads = {}
    for operator in OPERATORS.values():
        _LIBRARY.define(f"{operator.name}{operator.schema}", tags=(torch.Tag.pt2_compliant_tag,))
        # Every device has the same entry; which kernel runs is decided inside.
        _LIBRARY.impl(operator.name, _dispatcher(operator), "CompositeExplicitAutograd")
        for key in _NOT_PLAIN:
            _LIBRARY.impl(operator.name, _refusal(operator), key)
        torch.library.register_fake(f"{NAMESPACE}::{operator.name}", _fake(operator), lib=_LIBRARY)
        overloads[operator.name] = getattr(torch.ops.dlinfer, operator.name).default
    return overloads


OVERLOADS: dict[str, Any] = _define()
"""The operators as torch knows them, by name."""
