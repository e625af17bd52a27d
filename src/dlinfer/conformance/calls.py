"""One call of a case: its arguments on a device, what the call did to them, and the reference's answers to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dlinfer.conformance.sampling import Case
from dlinfer.interface.declaration import Operator
from dlinfer.reference import KERNELS
from op_tools.reference import Reference

# The dtype of a result follows the precision; what is quantised to, does not.
_UPCAST_DTYPES = ("out_dtype",)


class DeviceArguments:
    """The arguments of one call on a device, as they lie on the CPU.

    Tensors that share memory share it there too; strides, gaps and offsets are the same. Everything that a call may not
    write (inputs, gaps, the rest of a shared buffer) must hold the same bits afterwards.
    """

    def __init__(self, arguments: dict[str, Any], device: str, host: Iterable[str] = ()) -> None:
        self.arguments: dict[str, Any] = {}
        self._buffers: dict[tuple[int, str, torch.dtype], tuple[Tensor, Tensor, list[str]]] = {}
        kept = set(host)
        for name, value in arguments.items():
            there = "cpu" if name in kept else device
            self.arguments[name] = self._on_device(name, value, there) if isinstance(value, Tensor) else value

    def _on_device(self, name: str, value: Tensor, device: str) -> Tensor:
        storage = value.untyped_storage()
        key = (storage.data_ptr(), device, value.dtype)
        if key not in self._buffers:
            before = torch.empty(0, dtype=value.dtype).set_(storage).clone()
            # clone: .to() gives the same memory where nothing moves.
            self._buffers[key] = (before, before.to(device).clone(), [])
        _, there, names = self._buffers[key]
        names.append(name)
        return there.as_strided(value.shape, value.stride(), value.storage_offset())

    def damaged(self, written: Iterable[str]) -> list[str]:
        """The arguments around or in which something changed that may not."""
        allowed = set(written)
        found = []
        for before, there, names in self._buffers.values():
            may = torch.zeros(before.shape, dtype=torch.bool)
            for name in allowed.intersection(names):
                value = self.arguments[name]
                may.as_strided(value.shape, value.stride(), value.storage_offset()).fill_(True)
            if bool((~may & _differs(before, there.cpu())).any()):
                found.append(" and ".join(names))
        return found


def _differs(one: Tensor, other: Tensor) -> Tensor:
    """Bit for bit."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    return one.view(bits) != other.view(bits)


def flat(operator: Operator, result: Any, arguments: dict[str, Any]) -> list[Any]:
    """What a call returned, then what it wrote, in the order of the schema."""
    returned = list(result) if isinstance(result, (tuple, list)) else [] if result is None else [result]
    written = [arguments[name] for name in operator.writes if arguments.get(name) is not None]
    return returned + written


def titles(operator: Operator, arguments: dict[str, Any]) -> list[str]:
    """Names for what `flat` gives."""
    count = len(operator.parsed.returns)
    returned = ["result"] if count == 1 else [f"result {index}" for index in range(count)]
    return returned + [name for name in operator.writes if arguments.get(name) is not None]


class ReferenceRun(Reference):
    """One case on the CPU; every answer is computed when it is asked for."""

    def __init__(self, operator: Operator, case: Case) -> None:
        self.operator = operator
        self.func = KERNELS[operator.name]
        self.kwargs = operator.bound((), case.arguments)

    def evaluate(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], grad_outputs: Any, *, upcast: bool
    ) -> list[Any]:
        # Copies, since the call writes to some of them: into the caches, say.
        arguments = DeviceArguments(dict(kwargs), "cpu").arguments
        for name, value in self.kwargs.items() if upcast else ():
            if isinstance(value, torch.dtype) and name not in _UPCAST_DTYPES:
                arguments[name] = value
        return flat(self.operator, KERNELS[self.operator.name](**arguments), arguments)
