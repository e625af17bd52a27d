"""Runs a captured call on the device, forward and backward, as often as asked."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from op_tools.captured.load import CapturedCall
from op_tools.captured.move import cloned, copied, to_device
from op_tools.reference.call_plan import plan_for
from op_tools.trees import flat_results, flat_tensors

__all__ = ["CallRunner", "Execution", "aligned_gradients"]

Result = TypeVar("Result")


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


@dataclass(eq=False)
class CallRunner:
    """Holds what is the same for every run of a call."""

    func: Callable[..., Any]
    captured: CapturedCall
    device: torch.device
    sync: bool = False
    only_forward: bool = False

    def __post_init__(self) -> None:
        self._stopwatch = Stopwatch(self.device, sync=self.sync)
        self._writes = plan_for(self.func, "cpu").writes(self.captured.args, self.captured.kwargs)
        self.records_graph = self._wants_graph()
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
            self._inputs = to_device(
                (self.captured.args, self.captured.kwargs),
                self.device,
                captured_on=self.captured.device,
                on_host=self.captured.host_tensors,
                requires_grad=self.records_graph,
            )
            leaves = flat_tensors(*self._inputs)
            if self.records_graph and not any(leaf.requires_grad for leaf in leaves):
                # Copies made for a comparison are detached: which inputs had a gradient says the gradient.
                for index in self.captured.gradients:
                    leaves[index].requires_grad_(True)
        return self._inputs

    def run(self) -> Execution:
        args, kwargs = self._fresh_inputs()
        leaves = flat_tensors(args, kwargs)
        with torch.set_grad_enabled(self.records_graph), self._autocast():
            if self._writes and any(leaf.requires_grad for leaf in leaves):
                # A leaf must not be written to; what came before it in the model was not one either.
                args, kwargs = cloned((args, kwargs))
            result = self._stopwatch.measure(lambda: self.func(*args, **kwargs))
        execution = Execution(args, kwargs, result, self._stopwatch.milliseconds)
        if not self.only_forward:
            self._backward(execution, leaves)
        return execution

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        state = self.captured.autocast
        if state is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=state[1], enabled=state[0])

    def _backward(self, execution: Execution, leaves: list[torch.Tensor]) -> None:
        outputs = [item for item in flat_results(execution.result) if isinstance(item, torch.Tensor)]
        wanted = [index for index, leaf in enumerate(leaves) if leaf.requires_grad]
        grads = self._grad_outputs(outputs, execution)
        pairs = [(output, grad) for output, grad in zip(outputs, grads, strict=True) if grad is not None]
        if not wanted or not pairs:
            return
        roots, inputs = [output for output, _ in pairs], [leaves[index] for index in wanted]
        execution.grad_outputs, execution.wants_grad = grads, wanted
        execution.grads = self._stopwatch.measure(
            lambda: list(torch.autograd.grad(roots, inputs, [grad for _, grad in pairs], allow_unused=True))
        )
        execution.backward_ms = self._stopwatch.milliseconds

    def _grad_outputs(self, outputs: list[torch.Tensor], execution: Execution) -> list[torch.Tensor | None]:
        """The captured gradients; ones where none were captured; None for outputs that have none."""
        differentiable = [output.requires_grad and output.grad_fn is not None for output in outputs]
        captured = aligned_gradients(self.captured.grad_outputs, outputs, differentiable)
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


def aligned_gradients(
    grads: tuple[Any, ...] | None, outputs: Sequence[torch.Tensor], differentiable: Sequence[bool]
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


class Stopwatch:
    """`measure` runs a function; `milliseconds` is what the last one took."""

    def __init__(self, device: torch.device, *, sync: bool) -> None:
        self.device = device
        self.milliseconds = 0.0
        self._on_host = device.type == "cpu"
        self._events = None if sync or self._on_host else self._make_events()

    def _make_events(self) -> tuple[torch.Event, torch.Event] | None:
        try:
            first, second = (torch.Event(self.device, enable_timing=True) for _ in range(2))
            first.record()
            second.record()
            second.synchronize()
            first.elapsed_time(second)
        except (RuntimeError, NotImplementedError, TypeError):  # a device without timing events
            return None
        return first, second

    def measure(self, function: Callable[[], Result]) -> Result:
        self._wait()
        if self._events is None:
            start = time.perf_counter()
            result = function()
            self._wait()
            self.milliseconds = (time.perf_counter() - start) * 1e3
            return result
        first, second = self._events
        first.record()
        result = function()
        second.record()
        second.synchronize()
        self.milliseconds = float(first.elapsed_time(second))
        return result

    def _wait(self) -> None:
        if not self._on_host:
            torch.accelerator.synchronize(self.device)
