"""One call of a library with the arguments of a case: device buffers, the call, what came back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from diopi.conformance.buffers import GuardedBuffer, read_made
from diopi.library import Generator, Library, LibraryError
from diopi.library.errors import ERROR
from diopi.table import Entry

# Outputs are filled with one of these before a call. As numbers: huge or NaN, -1 or NaN.
POISONS = (0x7F, 0xFF)
# Answers of a vendor that does not offer the operator, or not for these dtypes or dimensions.
UNSUPPORTED = {
    12: "5 dimensions are not supported",
    13: "not implemented",
    14: "asks for the CPU",
    1000: "dtype not supported",
}

_WRITTEN = ("out", "outs", "update", "updates")


@dataclass
class Ran:
    """What a call did."""

    code: int = 0
    error: str = ""
    """The vendor's text, or why the call was not possible."""
    values: dict[str, Any] = field(default_factory=dict)
    """Written argument -> tensor, list of tensors or number."""
    faults: list[str] = field(default_factory=list)
    """What was changed that must not be."""
    thrown: bool = False
    """The function let a C++ exception out; `error` says which."""

    @property
    def ok(self) -> bool:
        return self.code == 0


def run_once(
    library: Library,
    entry: Entry,
    arguments: Mapping[str, Any],
    results: Mapping[str, Any],
    *,
    poison: int = POISONS[0],
    seed_shift: int = 0,
) -> Ran:
    """Calls the entry's function once with fresh buffers.

    `results` are the reference's values: an output that the case does not give is allocated like them.
    """
    call = _Call(library, entry, poison, seed_shift)
    try:
        ran = call.run(arguments, results)
    finally:
        problem = call.free()
    if problem and ran.ok:  # else what came first is told
        ran.code, ran.error = ERROR, problem
    return ran


class _Call:
    def __init__(self, library: Library, entry: Entry, poison: int, seed_shift: int) -> None:
        self._library = library
        self._entry = entry
        self._poison = poison
        self._seed_shift = seed_shift
        self._buffers: dict[str, Any] = {}
        # The same tensor given twice is the same memory: `x.add_(x)`.
        self._by_tensor: dict[int, GuardedBuffer] = {}
        self._made: list[GuardedBuffer] = []

    def run(self, arguments: Mapping[str, Any], results: Mapping[str, Any]) -> Ran:
        given = {}
        for argument in self._entry.function.arguments:
            role = self._entry.role(argument)
            value = arguments.get(argument.name)
            if role in ("out", "outs"):
                value = _template(value, results.get(argument.name))
            if role in ("made", "value") or (value is None and role is None):
                continue
            given[argument.name] = self._given(argument.name, argument.ctype, role, value)
        self._library.memory.watch_required(self._poison)
        try:
            answer = self._library.call(self._entry.name, given)
        except LibraryError as error:
            return Ran(code=-1, error=str(error))
        try:
            return self._collected(answer)
        finally:
            answer.close()

    def free(self) -> str:
        """What was wrong with it; empty if nothing."""
        problem = ""
        for buffer in self._made:
            try:
                buffer.free()
            except LibraryError as error:
                problem = problem or str(error)
        return problem

    def _given(self, name: str, ctype: str, role: str | None, value: Any) -> Any:
        if role is not None:
            poison = self._poison if role in ("out", "outs") else None
            buffers = self._held(value, poison)
            self._buffers[name] = buffers
            return _handles(buffers)
        if "GeneratorHandle" in ctype and isinstance(value, int):
            seed = value + self._seed_shift
            state = torch.Generator().manual_seed(seed).get_state()
            return Generator(state.numpy().tobytes(), seed)
        return value

    def _held(self, value: Any, poison: int | None) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._held(item, poison) for item in value]
        if value is None:
            return None
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"a tensor is needed, not {type(value).__name__}")
        if poison is None and id(value) in self._by_tensor:
            return self._by_tensor[id(value)]
        buffer = GuardedBuffer(self._library.memory, value, poison)
        self._made.append(buffer)
        if poison is None:
            self._by_tensor[id(value)] = buffer
        return buffer

    def _collected(self, answer: Any) -> Ran:
        ran = Ran(answer.code, answer.error, thrown=answer.thrown)
        try:
            self._library.synchronize()
        except LibraryError as error:
            ran.code, ran.error = ran.code or ERROR, ran.error or str(error)
        try:
            for buffer in self._made:
                buffer.read()
        except LibraryError as error:
            ran.code, ran.error = ran.code or ERROR, ran.error or str(error)
            return ran
        written = {id(b) for name, b in self._flat_buffers() if self._role(name) in _WRITTEN}
        for name, buffer in self._flat_buffers():
            fault = buffer.fault(name, written=id(buffer) in written, finished=ran.ok)
            if fault and fault not in ran.faults:
                ran.faults.append(fault)
        ran.faults += answer.faults
        if ran.ok:
            self._values_into(ran, answer)
        return ran

    def _values_into(self, ran: Ran, answer: Any) -> None:
        for argument in self._entry.written():
            held = self._buffers.get(argument.name)
            match self._entry.role(argument):
                case "made":
                    made = answer.made.get(argument.name)
                    ran.values[argument.name] = (
                        None if made is None else read_made(self._library.memory, made)
                    )
                case "value":
                    ran.values[argument.name] = answer.values.get(argument.name)
                case _ if isinstance(held, list):
                    ran.values[argument.name] = [None if b is None else b.values() for b in held]
                case _:
                    ran.values[argument.name] = None if held is None else held.values()

    def _role(self, title: str) -> str | None:
        name = title.partition("[")[0]
        return next(self._entry.role(a) for a in self._entry.function.arguments if a.name == name)

    def _flat_buffers(self) -> list[tuple[str, GuardedBuffer]]:
        found = []
        for name, held in self._buffers.items():
            if isinstance(held, list):
                found += [(f"{name}[{i}]", b) for i, b in enumerate(held) if b is not None]
            elif held is not None:
                found.append((name, held))
        return found


def _template(given: Any, result: Any) -> Any:
    """Shape, strides and dtype of an output: as the case says, else those of the reference's result, contiguous."""
    if isinstance(given, (list, tuple)):
        results = result if isinstance(result, (list, tuple)) else [None] * len(given)
        return [_template(item, like) for item, like in zip(given, results, strict=True)]
    if given is not None:
        return given
    if isinstance(result, (list, tuple)):
        return [_template(None, like) for like in result]
    return result.contiguous() if isinstance(result, torch.Tensor) else None


def _handles(buffers: Any) -> Any:
    if isinstance(buffers, list):
        return [_handles(item) for item in buffers]
    return None if buffers is None else buffers.handle()
