"""What a captured call shows: its values judged against a reference that is computed anew from its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from op_tools import writing
from op_tools.categories import Category, category_of, is_random
from op_tools.describe import numbered
from op_tools.names import RefusedName, function_named
from op_tools.reference.recompute import Recomputation, RecomputeError
from op_tools.replay.bounds import TooLarge, check_memory, limit_for
from op_tools.replay.execute import Executor
from op_tools.replay.items import Captured, Item, opaque_values, read_item
from op_tools.replay.placing import mutates, place
from op_tools.runs import BadInput
from op_tools.storage import CaptureError
from op_tools.trees import flat_results, flat_tensors
from op_tools.verdict import Verdict, judge
from op_tools.verdict.tolerance import tolerance_for

__all__ = ["Evidence", "Value", "evidence_of", "judged_captured", "read"]

_CPU = torch.device("cpu")
# Stands for the accelerator: torch knows the word everywhere, and rendering turns it into `device`.
_ACCELERATOR = torch.device("cuda")


@dataclass(frozen=True)
class Value:
    """A result, an input that was written to, or a gradient, as the device gave it."""

    name: str
    place: int  # among all of them
    index: int  # among the results of its reference
    reference: Recomputation
    category: Category
    given: Any  # None: not captured
    verdict: Verdict | None  # None: nothing to judge

    @property
    def wrong(self) -> bool:
        return self.verdict is not None and self.verdict.status == "fail"

    @property
    def own(self) -> Any:
        """What the CPU gives in the same dtype."""
        return self.reference.own()[self.index]


@dataclass
class Evidence:
    """One captured call, ready to be written down."""

    captured: Captured
    func: Callable[..., Any]
    autocast: torch.dtype | None
    graph: bool
    forward: Recomputation
    backward: Recomputation | None = None
    values: list[Value] = field(default_factory=list)
    written: list[int] = field(default_factory=list)  # flat tensor inputs written to and not returned
    wanted: list[int] = field(default_factory=list)  # flat tensor inputs that have gradients
    grad_outputs: list[torch.Tensor | None] = field(default_factory=list)
    seen_on: str = ""  # where the values come from, if not from the capture

    @property
    def name(self) -> str:
        return self.captured.name

    @property
    def wrong(self) -> list[Value]:
        return [value for value in self.values if value.wrong]

    @property
    def copies(self) -> bool:
        """Whether inputs must be cloned before the call: a leaf of the graph cannot be written to."""
        leaves = flat_tensors(self.captured.args, self.captured.kwargs)
        requires = bool(self.wanted) or any(leaf.requires_grad for leaf in leaves)
        return self.graph and requires and mutates(self.func, self.name, self.captured.kwargs)


def read(item: Item) -> Captured:
    """Load a captured call. Raises BadInput where it cannot be run again."""
    try:
        captured = read_item(item)
    except CaptureError as error:
        raise BadInput(str(error)) from error
    if not captured.name:
        raise BadInput(
            f"{item.label} does not say which operator it is. Capture the call again with OpCapture."
        )
    kind = str(captured.header.get("device") or "").partition(":")[0]
    if captured.args and kind not in ("", "cpu") and captured.name == f"torch.Tensor.{kind}":
        # `x.cuda()`: named after a device, and elsewhere `x.to(device)`.
        captured = replace(captured, name="torch.Tensor.to", args=(captured.args[0], _ACCELERATOR), kwargs={})
    missing = opaque_values(captured)
    if missing:
        shown = ", ".join(f"{value.type_name} ({value.text})" for value in missing[:3])
        raise BadInput(f"{captured.name} cannot be written down: only a description was captured of {shown}.")
    return captured


def evidence_of(captured: Captured) -> Evidence:
    """Everything but the judged values. Raises BadInput for calls that no file can reproduce."""
    func = _function(captured)
    category = category_of(func, captured.name)
    if is_random(func, captured.name, captured.args, captured.kwargs):
        raise BadInput(
            f"{captured.name} draws random numbers. Its results are judged by their distribution, which one file with "
            f"one call cannot show. `op-tools replay` judges it on the device."
        )
    if category in ("uninitialised", "communication"):
        raise BadInput(
            f"{captured.name} has nothing to reproduce: values of {category} results are not compared."
        )
    executor = Executor(func, captured, _CPU, sync=False, only_forward=True)
    state = executor.autocast
    autocast = state[1] if state is not None and state[0] else None
    forward = _recomputation(captured, func, autocast)
    try:
        forward.own()
    except RecomputeError as error:
        raise BadInput(
            f"there is no reference: {error}. Only calls that the CPU can run are reproduced."
        ) from error
    written = list(forward.written)
    return Evidence(captured, func, autocast, executor._grad, forward, written=written)


def _function(captured: Captured) -> Callable[..., Any]:
    held = flat_tensors([captured.args, captured.outputs or ()], captured.kwargs)
    nbytes = sum(tensor.untyped_storage().nbytes() for tensor in held if tensor.layout is torch.strided)
    try:
        func = function_named(captured.name)
        check_memory(func, captured.args, captured.kwargs, limit_for(nbytes, captured.outputs is not None))
    except (RefusedName, TooLarge) as error:
        raise BadInput(
            f"{error}. A reproduction file needs only torch, so only torch's functions fit."
        ) from error
    return func


def _recomputation(
    captured: Captured, func: Callable[..., Any], autocast: torch.dtype | None, **gradients: Any
) -> Recomputation:
    where = str(captured.header.get("device") or "")
    args, kwargs = place((captured.args, captured.kwargs), _CPU, captured_on=where, grads=False)
    return Recomputation(
        func, args, kwargs, autocast=None if autocast is None else (True, autocast), **gradients
    )


def judged_captured(evidence: Evidence) -> None:
    """Judge what was captured: outputs, and gradients where there are some."""
    captured = evidence.captured
    if captured.outputs is not None:
        outputs = flat_results(captured.outputs)
        expected = len(evidence.forward.own())
        if len(outputs) not in (expected, expected - len(evidence.written)):
            raise BadInput(
                f"{len(outputs)} results of {captured.name} were captured where {expected} are expected. "
                f"The capture is damaged or of another torch."
            )
        if len(outputs) < expected:
            outputs += _written(evidence)
        judge_outputs(evidence, outputs)
    if captured.grad_inputs is not None and captured.grad_outputs is not None:
        judge_gradients(evidence)


def _written(evidence: Evidence) -> list[Any]:
    """What the call wrote to and did not return, as captured; None for what the capture does not have."""
    captured = evidence.captured
    targets = writing.written(evidence.func, evidence.name, captured.args, captured.kwargs)
    if len(targets) == len(captured.written):
        # Captured in the order of the function's parameters, which keyword arguments need not keep.
        after = dict(zip(map(id, targets), captured.written, strict=True))
        inputs = flat_tensors(captured.args, captured.kwargs)
        return [after.get(id(inputs[place])) for place in evidence.written]
    if len(captured.written) == len(evidence.written):
        return list(captured.written)
    return [None] * len(evidence.written)


def judged_on(evidence: Evidence, device: torch.device) -> None:
    """Run the call on a device of this machine and judge what it gives."""
    executor = Executor(
        evidence.func,
        evidence.captured,
        device,
        sync=False,
        only_forward=evidence.captured.grad_outputs is None,
    )
    execution = executor.run()
    inputs = flat_tensors(execution.args, execution.kwargs)
    results = [*flat_results(execution.result), *(inputs[place] for place in evidence.written)]
    evidence.values.clear()
    evidence.seen_on = str(device)
    judge_outputs(evidence, [_near(value) for value in results])
    if execution.wants_grad and execution.as_captured:
        everything: list[Any] = [None] * len(inputs)
        for place_, grad in zip(execution.wants_grad, execution.grads, strict=True):
            everything[place_] = _near(grad)
        evidence.captured = replace(evidence.captured, grad_inputs=tuple(everything))
        judge_gradients(evidence)


def _near(value: Any) -> Any:
    return value.detach().to("cpu") if isinstance(value, torch.Tensor) else value


def judge_outputs(evidence: Evidence, outputs: list[Any]) -> None:
    """Judge results, and inputs that were written to where they are known."""
    own = evidence.forward.own()
    count = len(own) - len(evidence.written)
    names = numbered("", "output", count) + [f" input {place} (written)" for place in evidence.written]
    category = category_of(evidence.func, evidence.name)
    given = [*outputs, *[None] * (len(own) - len(outputs))]
    for index, (name, value) in enumerate(zip(names, given, strict=True)):
        _add(evidence, name.strip(), index, index, evidence.forward, category, value)


def judge_gradients(evidence: Evidence) -> None:
    """Judge the gradients of inputs, given the captured ones of the outputs."""
    captured = evidence.captured
    outputs = [value for value in flat_results(evidence.forward.own()) if isinstance(value, torch.Tensor)]
    outputs = outputs[: len(outputs) - len(evidence.written)]
    incoming = _aligned(captured.grad_outputs or (), outputs)
    wanted = _wanted(captured)
    if incoming is None or not wanted:
        return
    places = [place for place, _ in wanted]
    reference = _recomputation(
        captured, evidence.func, evidence.autocast, grad_outputs=incoming, wants_grad=places
    )
    try:
        found = reference.own()
    except RecomputeError:
        return
    evidence.backward, evidence.wanted, evidence.grad_outputs = reference, places, incoming
    evidence.graph = True
    start = len(evidence.forward.own())
    for index, (position, grad) in enumerate(wanted):
        if isinstance(found[index], torch.Tensor):
            _add(evidence, f"grad[{position}]", start + index, index, reference, "other", grad)


def _add(
    evidence: Evidence,
    name: str,
    place_: int,
    index: int,
    reference: Recomputation,
    category: Category,
    value: Any,
) -> None:
    verdict, value = None, _near(value)
    if value is not None:
        dtype = value.dtype if isinstance(value, torch.Tensor) else type(value)
        tolerance = tolerance_for(evidence.name, dtype)
        verdict = judge(value, reference, index, category=category, tolerance=tolerance)
    evidence.values.append(Value(name, place_, index, reference, category, value, verdict))


def _aligned(grads: tuple[Any, ...], outputs: list[torch.Tensor]) -> list[torch.Tensor | None] | None:
    """Gradients of the outputs, one for each; None if they do not fit. Some tools leave out those that have none."""
    given = list(grads[0] if len(grads) == 1 and isinstance(grads[0], list | tuple) else grads)
    if len(given) != len(outputs):
        rest = iter([grad for grad in given if grad is not None])
        given = [
            next(rest, None) if value.is_floating_point() or value.is_complex() else None for value in outputs
        ]
    for grad, output in zip(given, outputs, strict=True):
        if grad is not None and not (isinstance(grad, torch.Tensor) and grad.shape == output.shape):
            return None
    return given if any(grad is not None for grad in given) else None


def _wanted(captured: Captured) -> list[tuple[int, torch.Tensor]]:
    """(flat tensor input, its captured gradient); lists without gaps are fitted by their shapes, in order."""
    inputs, saved = flat_tensors(captured.args, captured.kwargs), captured.grad_inputs or ()
    if len(saved) == len(inputs):
        return [(place_, grad) for place_, grad in enumerate(saved) if isinstance(grad, torch.Tensor)]
    grads = [grad for grad in flat_results(saved) if isinstance(grad, torch.Tensor)]
    marked = any(tensor.requires_grad for tensor in inputs)
    found: list[tuple[int, torch.Tensor]] = []
    for place_, tensor in enumerate(inputs):
        if len(found) == len(grads):
            break
        grad = grads[len(found)]
        fits = tensor.shape == grad.shape and (tensor.is_floating_point() or tensor.is_complex())
        if fits and (tensor.requires_grad or not marked):
            found.append((place_, grad))
    return found if len(found) == len(grads) else []
