"""A captured call with the verdicts on its values: what a reproduction file is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from op_tools.captured.admission import NotReplayable, TooLarge, admitted
from op_tools.captured.judge import CallJudge, CaptureMismatch
from op_tools.captured.load import CapturedCall, Item, read_item
from op_tools.captured.run import CallRunner, Execution
from op_tools.categories import Category
from op_tools.describe import numbered
from op_tools.names import RefusedName
from op_tools.reference.call_plan import plan_for
from op_tools.reference.recompute import Recomputation, RecomputeError
from op_tools.reproduce import runtime
from op_tools.runs import BadInput
from op_tools.storage import CaptureError
from op_tools.trees import flat_results, flat_tensors
from op_tools.verdict import Verdict, is_label
from op_tools.verdict.distribution import knows_distribution

__all__ = ["JudgedCall", "JudgedValue"]

_CPU = torch.device("cpu")
# Stand for the accelerator of whoever runs the file: torch knows the words everywhere, rendering turns them into `device`.
_ACCELERATORS = (torch.device("cuda"), torch.device("xpu"))


@dataclass(frozen=True)
class JudgedValue:
    """A result, an input that was written to, or a gradient, as the device gave it."""

    name: str
    slot: int  # among all of them
    index: int  # among the results of its reference
    reference: Recomputation
    category: Category
    given: Any  # None: not captured
    verdict: Verdict | None  # None: nothing to judge

    @property
    def failed(self) -> bool:
        return self.verdict is not None and self.verdict.status == "fail"

    @property
    def wrong(self) -> bool:
        """Failed, or with a label such as lower precision: neither is what correct arithmetic of the dtype gives."""
        return self.failed or (self.verdict is not None and is_label(self.verdict.status))

    @property
    def own(self) -> Any:
        """What the CPU gives in the same dtype."""
        return self.reference.own()[self.index]

    @property
    def exact(self) -> Any:
        """What the CPU gives in float64, or in the same dtype where it has no kernel."""
        return (self.reference.truth() or self.reference.own())[self.index]


class JudgedCall(CallJudge):
    """One captured call, ready to be written down."""

    def __init__(self, func: Callable[..., Any], captured: CapturedCall) -> None:
        super().__init__(func, captured)
        self.graph = CallRunner(func, captured, _CPU).records_graph  # whether the call recorded its gradient
        self.values: list[JudgedValue] = []
        self.wants_grad: list[int] = []  # flat tensor inputs that have gradients
        self.grad_outputs: list[torch.Tensor | None] = []
        self.seen_on = ""  # where the values come from, if not from the capture

    @staticmethod
    def of_item(item: Item) -> JudgedCall:
        """A captured call and the verdicts on what was captured. Raises BadInput where no file can reproduce it."""
        try:
            captured = read_item(item)
        except CaptureError as error:
            raise BadInput(str(error)) from error
        return JudgedCall.of(captured)

    @staticmethod
    def of(captured: CapturedCall) -> JudgedCall:
        """The same for a call that was read already."""
        # Another than the captured one: `x.cuda()` is written as `x.to(device)`.
        elsewhere = _ACCELERATORS[captured.device.startswith(_ACCELERATORS[0].type)]
        try:
            func, captured = admitted(captured, elsewhere)
        except NotReplayable as error:
            what = captured.name or "the capture"
            raise BadInput(
                f"{what} cannot be written down: {error}. Capture the call again with OpCapture."
            ) from error
        except (RefusedName, TooLarge) as error:
            raise BadInput(
                f"{error}. A reproduction file needs only torch, so only torch's functions fit."
            ) from error
        call = JudgedCall(func, captured)
        if call.random and not knows_distribution(captured.name):
            raise BadInput(
                f"{captured.name} draws random numbers, and nothing is known about their distribution. Capture at ATen level: "
                f"what it calls inside can be judged."
            )
        if call.category in ("uninitialised", "communication"):
            raise BadInput(
                f"{captured.name} has nothing to reproduce: values of {call.category} results are not compared."
            )
        try:
            call.forward.own()
        except RecomputeError as error:
            raise BadInput(
                f"there is no reference: {error}. Only calls that the CPU can run are reproduced."
            ) from error
        call._judge_captured()
        return call

    @property
    def written(self) -> list[int]:
        """Flat tensor inputs that were written to and not returned."""
        return self.forward.written

    @property
    def autocast(self) -> torch.dtype | None:
        """The dtype of the autocast that the call ran under, if it was enabled."""
        state = self.captured.autocast
        return state[1] if state is not None and state[0] else None

    @property
    def wrong(self) -> list[JudgedValue]:
        return [value for value in self.values if value.wrong]

    @property
    def copies(self) -> bool:
        """Whether inputs must be cloned before the call: a leaf of the graph cannot be written to."""
        requires = bool(self.wants_grad) or any(leaf.requires_grad for leaf in self.captured.tensors)
        writes = plan_for(self.func, "cpu").writes(self.captured.args, self.captured.kwargs)
        return self.graph and requires and writes

    # --- verdicts -----------------------------------------------------------------------------------------

    def _judge_captured(self) -> None:
        """Judge what was captured: outputs, and gradients where there are some."""
        if self.random:
            if self.captured.outputs is not None:
                self._judge_draws(flat_results(self.captured.outputs))
            return
        if self.captured.outputs is not None:
            try:
                self._judge_results(self.captured_results())
            except CaptureMismatch as error:
                raise BadInput(f"{self.name}: {error}") from error
        if self.captured.grad_inputs is not None and self.captured.grad_outputs is not None:
            self._judge_gradients()

    def judge_on(self, device: torch.device, repeat: int = 1) -> None:
        """Run the call on a device of this machine and judge what it gives; again, so often, until something is wrong."""
        only_forward = self.captured.grad_outputs is None
        runner = CallRunner(self.func, self.captured, device, only_forward=only_forward)
        before: list[Any] = []
        for content in runtime.contents(repeat):
            runtime.prepare_memory(content, before, device)
            execution = runner.run()
            before = flat_results(execution.result)
            self._judge_execution(execution, device)
            if self.wrong:
                return

    def _judge_execution(self, execution: Execution, device: torch.device) -> None:
        inputs = flat_tensors(execution.args, execution.kwargs)
        self.values.clear()
        self.seen_on = str(device)
        if self.random:
            self._judge_draws(flat_results(execution.result))
            return
        results = flat_results(execution.result)
        self._judge_results([*results, *(inputs[position] for position in self.written)])
        if execution.wants_grad and execution.as_captured:
            grads: list[Any] = [None] * len(inputs)
            for position, grad in zip(execution.wants_grad, execution.grads, strict=True):
                grads[position] = self.near(grad)
            self.captured = replace(self.captured, grad_inputs=tuple(grads))
            self._judge_gradients()

    def _judge_draws(self, results: Sequence[Any]) -> None:
        """Judge random numbers by their distribution: all results of a call together."""
        near = [self.near(value) for value in results]
        names = numbered("", "output", len(near))
        for index, (name, value, verdict) in enumerate(
            zip(names, near, self.judged_random(near), strict=True)
        ):
            found = JudgedValue(name.strip(), index, index, self.forward, self.category, value, verdict)
            self.values.append(found)

    def _judge_results(self, results: Sequence[Any]) -> None:
        """Judge results, and inputs that were written to where they were captured."""
        own = self.forward.own()
        names = numbered("", "output", len(own) - len(self.written))
        names += [f" input {position} (written)" for position in self.written]
        given = [*results, *[None] * (len(own) - len(results))]
        for index, (name, value) in enumerate(zip(names, given, strict=True)):
            self._add(name.strip(), index, index, self.forward, value)

    def _judge_gradients(self) -> None:
        """Judge the gradients of inputs, given the captured ones of the outputs."""
        incoming, grads = self.captured_grad_outputs(), self.captured.gradients
        if incoming is None or not grads:
            return
        reference = self.backward(incoming, list(grads))
        try:
            found = reference.own()
        except RecomputeError:
            return
        self.wants_grad, self.grad_outputs, self.graph = list(grads), incoming, True
        start = len(self.forward.own())
        for index, (position, grad) in enumerate(grads.items()):
            if isinstance(found[index], torch.Tensor):
                self._add(f"grad[{position}]", start + index, index, reference, grad)

    def _add(self, name: str, slot: int, index: int, reference: Recomputation, value: Any) -> None:
        value = self.near(value)
        verdict = None if value is None else self.judged(value, reference, index)
        category: Category = "other" if reference.is_gradient else self.category
        self.values.append(JudgedValue(name, slot, index, reference, category, value, verdict))
