"""Compiling for a case: with the backend that is checked, observed, on its device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from dicore.conformance.results import CaseResult
from dicp.conformance.observation import Observations, observed
from dicp.dynamo_bridge.compile_fx import compile_fx
from dicp.registry import find

__all__ = ["Compilation", "compilation_of"]


class Compilation:
    """The backend that is checked. What it does is noted until a case is concluded."""

    def __init__(self, backend: str, device: str, seen: Observations) -> None:
        self.backend = backend
        self.device = device
        self.seen = seen

    def compiled(self, function: Callable[..., Any], **arguments: Any) -> Callable[..., Any]:
        """torch.compile with the backend; of earlier cases nothing is left. Modules and functions alike."""
        torch._dynamo.reset()
        self.seen.clear()
        name = self.backend

        def backend(gm: Any, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
            return compile_fx(gm, inputs, name, **options)

        found: Callable[..., Any] = torch.compile(function, backend=backend, fullgraph=True, **arguments)
        return found

    def on_device(self, value: Any) -> Any:
        return value.to(self.device) if isinstance(value, torch.Tensor) else value

    def conclude(self, result: CaseResult, reasons: Sequence[str]) -> None:
        """Sets the outcome of a case: wrong, or run eagerly instead, or right."""
        seen = self.seen
        if reasons:
            result.set("fail", "; ".join(reasons))
        elif seen.refused:
            result.set("unsupported", _fell_back(seen.refused))
        elif not seen.compilations:
            result.set("skipped", "there is nothing in it to compile")
        elif not seen.calls:
            result.set("fail", "what the backend compiled was never called")


def _fell_back(refused: Mapping[str, str]) -> str:
    return "fell back: " + "; ".join(dict.fromkeys(refused.values()))


@contextmanager
def compilation_of(backend: str, device: str = "cpu") -> Iterator[Compilation]:
    """Observes the backend of a name for the length of the block. UnknownBackendError: there is none of the name."""
    with observed(find(backend)) as seen:
        yield Compilation(backend, device, seen)
    torch._dynamo.reset()
