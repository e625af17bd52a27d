"""Whether the device of a worker still works after a case that went wrong.

Some errors stay: after an invalid address a device answers every call with that error, and all cases behind the guilty one would
fail for it. So memory is tried after such a case, and the cheapest case that has passed here, with elements to tell by, is run
again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress

import torch

from dicore.conformance.results import CaseResult
from diopi.conformance.diopi_case import DiopiCase
from diopi.library import LibraryError, LibraryMemory

__all__ = ["DeviceHealth"]

_BYTES = 256


class DeviceHealth:
    """Of one worker."""

    def __init__(self, memory: LibraryMemory, run: Callable[[DiopiCase], CaseResult]) -> None:
        self._memory = memory
        self._run = run
        self._known: tuple[float, DiopiCase] | None = None
        """The cheapest case that has passed and would not pass by chance."""

    def problem_after(self, case: DiopiCase, result: CaseResult) -> str:
        """What does not work after a case; empty if the worker can go on."""
        if result.status == "pass":
            if (self._known is None or result.seconds < self._known[0]) and _has_elements(case):
                self._known = result.seconds, case
            return ""
        if result.status == "skipped":
            return ""
        return self._memory_problem() or (self._operator_problem() if result.status == "fail" else "")

    def _memory_problem(self) -> str:
        """Allocates, copies there and back, and frees."""
        memory = self._memory
        sent, received = (
            ctypes.create_string_buffer(bytes(range(_BYTES)), _BYTES),
            ctypes.create_string_buffer(_BYTES),
        )
        pointer = 0
        try:
            pointer = memory.allocate(_BYTES)
            memory.write(pointer, ctypes.addressof(sent), _BYTES)
            memory.read(pointer, ctypes.addressof(received), _BYTES)
            memory.synchronize()
        except LibraryError as error:
            return str(error)
        finally:
            with suppress(LibraryError):
                memory.free(pointer)
        return "" if received.raw == sent.raw else "what is copied to the device and back is something else"

    def _operator_problem(self) -> str:
        if self._known is None:
            return ""
        known = self._known[1]
        again = self._run(known)
        return "" if again.status == "pass" else f"{known.id}, which has passed, fails now: {again.reason}"


def _has_elements(case: DiopiCase) -> bool:
    """Empty tensors are right on a dead device too."""
    values = [v for given in case.arguments.values() for v in (given if isinstance(given, list) else [given])]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return bool(tensors) and all(tensor.numel() > 1 for tensor in tensors)
