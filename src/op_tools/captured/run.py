"""Runs a captured call on the device, forward and backward, as often as asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from op_tools.replay.items import Captured
from op_tools.replay.placing import cloned, copied, host_tensors, mutates, place
from op_tools.replay.timing import Stopwatch
from op_tools.trees import flat_results, flat_tensors

__all__ = ["Execution", "Executor"]


@dataclass
class Execution:
    """One run. `args` and `kwargs` are the inputs as they were after the call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    forward_ms: float
    backward_ms: float | None = None
    # Flat tensor inputs that have gradients, the gradients, and what went into backward, one per flat output.
    wants_grad: list[int] = field(default_factory=list)
    grads: list[torch.Tensor | None] = field(default_factory=list)
    grad_outputs: list[torch.Tensor | None] = field(default_factory=list)
    # Whether those are the captured ones: only then the captured gradients of the inputs can be expected.
    as_captured: bool = False


class Executor:
    """Holds what is the same for every run of a call."""

    def __init__(
        self,
        func: Callable[..., Any],
        captured: Captured,
        device: torch.device,
        *,
        sync: bool,
        only_forward: bool,
    ) -> None:
        self.func = func
        self.captured = captured
        self.device = device
        self.only_forward = only_forward
        self._watch = Stopwatch(device, sync=sync)
        self._writes = mutates(func, captured.name, captured.kwargs)
        self._grad = self._wants_graph()
        self._inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def _wants_graph(self) -> bool:
        """As at capture: a call that made no graph (under no_grad, with out=) makes none now."""
        if self.captured.kwargs.get("out") is not None:
            return False
        if self.captured.grad_outputs is not None or self.captured.outputs is None:
            return True
        outputs = [item for item in flat_results(self.captured.outputs) if isinstance(item, torch.Tensor)]
        return any(tensor.requires_grad for tensor in outputs)

    def _fresh_inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """New copies where the call writes to them; else one copy serves every run."""
        if self._inputs is None or self._writes:
            header = self.captured.header
            tensors = flat_tensors(self.captured.args, self.captured.kwargs)
            devices = header.get("devices")
            self._inputs = place(
                (self.captured.args, self.captured.kwargs),
                self.device,
                captured_on=str(header.get("device") or ""),
                on_host=host_tensors(tensors, devices if isinstance(devices, list | tuple) else ()),
                grads=self._grad,
            )
        return self._inputs

    def run(self) -> Execution:
        args, kwargs = self._fresh_inputs()
        leaves = flat_tensors(args, kwargs)
        with torch.set_grad_enabled(self._grad), self._autocast():
            if self._writes and any(leaf.requires_grad for leaf in leaves):
                # A leaf must not be written to; what came before it in the model was not one either.
                args, kwargs = cloned((args, kwargs))
            result = self._watch.measure(lambda: self.func(*args, **kwargs))
        execution = Execution(args, kwargs, result, self._watch.milliseconds)
        if not self.only_forward:
            self._backward(execution, leaves)
        return execution

    @contextlib.contextmanager
    def _autocast(self) -> Iterator[None]:
        state = self.autocast
        if state is None:
            yield
            return
        with torch.autocast(self.device.type, dtype=state[1], enabled=state[0]):
            yield

    @property
    def autocast(self) -> tuple[bool, torch.dtype] | None:
        """Whether the call was made under autocast, as its header says, and to which dtype."""
        said = self.captured.extra.get("autocast")
        if not isinstance(said, list | tuple) or len(said) != 2:
            return None
        dtype = said[1] if isinstance(said[1], torch.dtype) else _dtype(str(said[1]))
        return None if dtype is None else (bool(said[0]), dtype)

    def _backward(self, execution: Execution, leaves: list[torch.Tensor]) -> None:
        outputs = [item for item in flat_results(execution.result) if isinstance(item, torch.Tensor)]
        wanted = [index for index, leaf in enumerate(leaves) if leaf.requires_grad]
        grads = self._grad_outputs(outputs, execution)
        pairs = [(output, grad) for output, grad in zip(outputs, grads, strict=True) if grad is not None]
        if not wanted or not pairs:
            return
        roots, inputs = [output for output, _ in pairs], [leaves[index] for index in wanted]
        execution.grad_outputs, execution.wants_grad = grads, wanted
        execution.grads = self._watch.measure(
            lambda: list(torch.autograd.grad(roots, inputs, [grad for _, grad in pairs], allow_unused=True))
        )
        execution.backward_ms = self._watch.milliseconds

    def _grad_outputs(self, outputs: list[torch.Tensor], execution: Execution) -> list[torch.Tensor | None]:
        """The captured gradients; ones where none were captured; None for outputs that have none."""
        differentiable = [output.requires_grad and output.grad_fn is not None for output in outputs]
        captured = _aligned(self.captured.grad_outputs, outputs, differentiable)
        if captured is None:
            return [
                torch.ones_like(output, requires_grad=False) if wanted else None
                for output, wanted in zip(outputs, differentiable, strict=True)
            ]
        execution.as_captured = True
        return [
            copied(grad, self.device, requires_grad=False) if grad is not None and wanted else None
            for grad, wanted in zip(captured, differentiable, strict=True)
        ]


def _dtype(text: str) -> torch.dtype | None:
    found = getattr(torch, text.removeprefix("torch."), None)
    return found if isinstance(found, torch.dtype) else None


def _aligned(
    grads: tuple[Any, ...] | None, outputs: list[torch.Tensor], differentiable: list[bool]
) -> list[torch.Tensor | None] | None:
    """Captured gradients, one per output; None if there are none that fit.

    Some tools save one per output (None: nothing flowed back there), some leave out those that cannot have one.
    """
    if grads is None:
        return None
    given = list(grads[0] if len(grads) == 1 and isinstance(grads[0], list | tuple) else grads)
    if len(given) != len(outputs):
        rest = iter([item for item in given if item is not None])
        given = [next(rest, None) if wanted else None for wanted in differentiable]
        if next(rest, None) is not None:
            return None
    for grad, output in zip(given, outputs, strict=True):
        if grad is not None and not (isinstance(grad, torch.Tensor) and grad.shape == output.shape):
            return None
    return given if any(grad is not None for grad in given) else None
