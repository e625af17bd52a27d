"""What the runtime must know of a generated library: its values, the operators of ATen that it calls, what it gives back.

Values are numbered: 0 is the arena, then come `inputs`, then `constants`, then as the code generator likes: parts of the arena,
`allocations`, results of `calls`. Ints among the arguments come to the library as `sizes`, in the order of `HostProgram.sizes`.

`dicp_plan` writes `dims`: the bytes of the arena; of each allocation its sizes and strides; of each output that is a
`ViewOutput` its sizes, strides and the offset in elements of its dtype from where the value begins; of each that is a
`SizeOutput` the number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

__all__ = [
    "Allocation",
    "AtenCall",
    "CallResult",
    "HostProgram",
    "SizeArgument",
    "SizeOutput",
    "TensorArgument",
    "TensorInput",
    "ViewOutput",
    "WholeOutput",
]


@dataclass(frozen=True)
class TensorInput:
    """A tensor among the arguments, at `place`. None: a size or stride that the graph leaves open."""

    place: int
    dtype: torch.dtype
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    written: bool = False

    @classmethod
    def like(cls, place: int, tensor: torch.Tensor, *, written: bool = False) -> TensorInput:
        """Of a tensor, fake ones with symbolic sizes too."""
        return cls(place, tensor.dtype, _fixed(tensor.shape), _fixed(tensor.stride()), written)


def _fixed(sizes: Sequence[Any]) -> tuple[int | None, ...]:
    return tuple(size if isinstance(size, int) else None for size in sizes)


@dataclass(frozen=True)
class TensorArgument:
    """In place of a tensor among an operator's arguments."""

    value: int
    rank: int
    dtype: torch.dtype


@dataclass(frozen=True)
class SizeArgument:
    """In place of an int that is known when the graph runs."""


@dataclass(frozen=True)
class CallResult:
    """Result number `result` of an operator, or element `position` of that list, becomes a value.

    What is not needed is not named.
    """

    value: int
    rank: int
    dtype: torch.dtype
    result: int = 0
    position: int = -1


@dataclass(frozen=True)
class AtenCall:
    """`arguments` are those of the schema, all of them and in its order; lists may mix tensors and None, or ints and sizes.

    The dims of a call: of what stands in place, from left to right, of a tensor the offset in bytes from where the value begins,
    sizes and strides, of a size the number; then of each of `results` its sizes and strides. A number may be given where the
    schema has a tensor.
    """

    operator: torch._ops.OpOverload
    arguments: tuple[Any, ...]
    results: tuple[CallResult, ...] = ()

    def slots(self) -> tuple[list[Any], list[tuple[int, int, int, int, torch.dtype | None]]]:
        """The arguments with None where something is filled in, and of that (argument, position, value, rank, dtype).

        No dtype: an int.
        """
        constants: list[Any] = []
        slots: list[tuple[int, int, int, int, torch.dtype | None]] = []
        for number, argument in enumerate(self.arguments):
            listed = isinstance(argument, (list, tuple))
            items = list(argument) if listed else [argument]
            for position, item in enumerate(items):
                place = number, position if listed else -1
                if isinstance(item, TensorArgument):
                    slots.append((*place, item.value, item.rank, item.dtype))
                    items[position] = None
                elif isinstance(item, SizeArgument):
                    slots.append((*place, -1, 0, None))
                    items[position] = 0 if listed else None
            constants.append(items if listed else items[0])
        return constants, slots


@dataclass(frozen=True)
class Allocation:
    """A value that outlives the run: allocated for it, of the sizes and strides that `dicp_plan` says."""

    value: int
    rank: int
    dtype: torch.dtype


@dataclass(frozen=True)
class WholeOutput:
    """The value itself: an allocation, a result of ATen, an input."""

    value: int


@dataclass(frozen=True)
class ViewOutput:
    """A view of an allocation, a result of ATen, an input; of another dtype perhaps."""

    value: int
    rank: int
    dtype: torch.dtype


@dataclass(frozen=True)
class SizeOutput:
    """A number that `dicp_plan` computes."""


@dataclass(frozen=True)
class HostProgram:
    """`weights`: numbers of values whose products may read a packed copy, such as constants.

    `Matmul.weight` is an index of these.
    """

    arguments: int
    values: int
    inputs: tuple[TensorInput, ...] = ()
    sizes: tuple[int, ...] = ()
    constants: tuple[torch.Tensor, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    calls: tuple[AtenCall, ...] = ()
    outputs: tuple[WholeOutput | ViewOutput | SizeOutput | None, ...] = ()
    weights: tuple[int, ...] = ()
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def load(self, library: str | Path) -> Callable[..., list[Any]]:
        """The library as a function of the graph's inputs, given one by one or as one list (`_boxed_call`), which it empties."""
        from dicp import _runtime  # type: ignore[attr-defined]

        plan = _runtime.Plan(str(library), self.device, self.arguments, self.values)
        for tensor in self.inputs:
            sizes, strides = (
                [-1 if n is None else n for n in given] for given in (tensor.sizes, tensor.strides)
            )
            plan.add_input(tensor.place, tensor.dtype, sizes, strides, tensor.written)
        for place in self.sizes:
            plan.add_size(place)
        for constant in self.constants:
            plan.add_constant(constant)
        for slot in self.allocations:
            plan.add_allocation(slot.value, slot.rank, slot.dtype)
        for call in self.calls:
            schema = call.operator._schema
            results = [(r.result, r.position, r.value, r.rank, r.dtype) for r in call.results]
            plan.add_call(schema.name, schema.overload_name, *call.slots(), results)
        for output in self.outputs:
            match output:
                case WholeOutput(value):
                    plan.add_whole_output(value)
                case ViewOutput(value, rank, dtype):
                    plan.add_view_output(value, rank, dtype)
                case SizeOutput():
                    plan.add_size_output()
                case None:
                    plan.add_none_output()
        for value in self.weights:
            plan.add_weight(value)
        return plan.finish()
