"""Judges what a captured call gave, now or when it was captured, against a reference computed anew from its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from op_tools import writing
from op_tools.captured.admission import NotReplayable
from op_tools.captured.load import CapturedCall
from op_tools.captured.move import to_device
from op_tools.captured.run import aligned_gradients
from op_tools.categories import category_of, is_random
from op_tools.reference.recompute import Recomputation
from op_tools.trees import flat_results
from op_tools.verdict import NoiseCache, Tolerance, Verdict, judge, tolerance_for
from op_tools.verdict.distribution import judge_random

__all__ = ["CallJudge", "CaptureMismatch"]


class CaptureMismatch(NotReplayable):
    """Captured values do not fit the call: they are damaged, or of another torch."""


class CallJudge:
    """The reference's side of one captured call.

    `forward` and `backward` compute results and gradients anew; `judged` holds one value against them. What was captured
    comes as `captured_results` and `captured.gradients`, in the order of the reference's own.
    """

    def __init__(self, func: Callable[..., Any], captured: CapturedCall, reference: str = "cpu") -> None:
        self.func = func
        self.captured = captured
        self.name = captured.name
        self.device = torch.device(reference)
        self.category = category_of(func, captured.name)
        self.random = is_random(func, captured.name, captured.args, captured.kwargs)
        self._noise = NoiseCache()

    @cached_property
    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments, as they were before it, on the reference device."""
        given = (self.captured.args, self.captured.kwargs)
        moved: tuple[tuple[Any, ...], dict[str, Any]] = to_device(
            given, self.device, captured_on=self.captured.device, requires_grad=False
        )
        return moved

    @cached_property
    def forward(self) -> Recomputation:
        """The call once more: its results, then the inputs that it wrote to and did not return."""
        return self._recomputation()

    def backward(
        self, grad_outputs: Sequence[torch.Tensor | None], wants_grad: Sequence[int]
    ) -> Recomputation:
        """The gradients of the inputs that `wants_grad` counts."""
        near = [self.near(grad) for grad in grad_outputs]
        return self._recomputation(grad_outputs=near, wants_grad=list(wants_grad))

    def _recomputation(self, **gradients: Any) -> Recomputation:
        args, kwargs = self.inputs
        return Recomputation(
            self.func,
            args,
            kwargs,
            reference=str(self.device),
            autocast=self.captured.autocast,
            **gradients,
        )

    # --- verdicts -----------------------------------------------------------------------------------------

    def judged(self, value: Any, reference: Recomputation, index: int) -> Verdict:
        """One result or gradient against what the reference has at `index`. Raises RecomputeError."""
        value, expected = self.near(value), reference.own()[index]
        if value is None and expected is None:
            return Verdict.plain("same")
        if value is None or expected is None:
            return Verdict.plain("fail", "a gradient on one side, none on the other", self.tolerance(value))
        return judge(
            value,
            reference,
            index,
            category="other" if reference.is_gradient else self.category,
            tolerance=self.tolerance(value),
            noise=self._noise,
            key=(self.name, reference.is_gradient),
        )

    def judged_all(self, values: Sequence[Any], reference: Recomputation) -> list[Verdict]:
        """All of them; all wrong where there are more or fewer than the reference has."""
        expected = len(reference.own())
        if len(values) != expected:
            text = f"{len(values)} results where the reference has {expected}"
            return [Verdict.plain("fail", text, self.tolerance(value)) for value in values]
        return [self.judged(value, reference, index) for index, value in enumerate(values)]

    def judged_random(self, results: Sequence[Any]) -> list[Verdict]:
        """Random numbers, by their distribution."""
        args, kwargs = self.inputs
        return judge_random(self.name, args, kwargs, [self.near(value) for value in results])

    # --- what was captured --------------------------------------------------------------------------------

    def captured_results(self) -> list[Any]:
        """As `forward` has them, None for what the capture does not have. Raises CaptureMismatch, RecomputeError."""
        outputs = flat_results(self.captured.outputs)
        expected, written = len(self.forward.own()), self.forward.written
        if len(outputs) == expected:  # tools that save what was written as outputs
            return outputs
        if len(outputs) != expected - len(written):
            raise CaptureMismatch(
                f"{len(outputs)} values were captured, the reference gives {expected}. The capture is damaged or of "
                f"another torch."
            )
        return outputs + self._captured_writes(written)

    def _captured_writes(self, written: Sequence[int]) -> list[Any]:
        captured = self.captured
        targets = writing.written(self.func, self.name, captured.args, captured.kwargs)
        if len(targets) == len(captured.written):
            # Captured in the order of the function's parameters, which keyword arguments need not keep.
            after = dict(zip(map(id, targets), captured.written, strict=True))
            inputs = captured.tensors
            return [after.get(id(inputs[position])) for position in written]
        return list(captured.written) if len(captured.written) == len(written) else [None] * len(written)

    def captured_grad_outputs(self) -> list[torch.Tensor | None] | None:
        """What came in from behind, one for each result; None where nothing that fits was captured."""
        own = self.forward.own()
        returned = own[: len(own) - len(self.forward.written)]
        outputs = [value for value in returned if isinstance(value, torch.Tensor)]
        differentiable = [value.is_floating_point() or value.is_complex() for value in outputs]
        return aligned_gradients(self.captured.grad_outputs, outputs, differentiable)

    # --- both ---------------------------------------------------------------------------------------------

    def near(self, value: Any) -> Any:
        """A value where the reference is, without its graph."""
        return value.detach().to(self.device) if isinstance(value, torch.Tensor) else value

    def tolerance(self, value: Any) -> Tolerance:
        """The fixed tolerance of the columns `atol` and `rtol`."""
        return tolerance_for(self.name, value.dtype if isinstance(value, torch.Tensor) else type(value))
