"""The tables OpAutoCompare prints for each call in verbose mode, in the form of the product documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from op_tools import describe
from op_tools.engine import Call
from op_tools.engine.call import tensors_of
from op_tools.recompute import Recomputation, flat_results
from op_tools.verdict import Verdict, tolerance_for

if TYPE_CHECKING:
    from op_tools.tool import Tool


def columns(verdict: Verdict) -> dict[str, Any]:
    """A verdict as columns of a table."""
    return {
        "allclose": verdict.allclose,
        "cosine_similarity": verdict.cosine_similarity,
        "max_abs_diff": verdict.max_abs_diff,
        "max_relative_diff": verdict.max_relative_diff,
        "atol": verdict.atol,
        "rtol": verdict.rtol,
        "error_info": verdict.error_info,
        "verdict": verdict.status,
        "reason": verdict.reason,
        "error_over_bound": verdict.error_over_bound,
    }


def forward(
    tool: Tool,
    call: Call,
    result: Any,
    copies: tuple[Any, Any],
    reference: Recomputation,
    verdicts: list[Verdict],
) -> None:
    """The call on both sides, then how each value compares."""
    from op_tools import tables

    args, kwargs = copies
    exact = reference.truth()
    shown = _shown(result, reference.own() if exact is None else exact)
    rows = describe.compare_rows(call.name, call.args, call.kwargs, result, args, kwargs, shown)
    title = f"{call.name} forward_id: {call.id}{_cast_text((args, kwargs), exact)}"
    tool.say(f"\n\n\n{title}\n{tool.place_text(call)}")
    tool.say(tables.describe_table(rows))
    inputs = flat_results((list(call.args), call.kwargs))
    names = describe.numbered(call.name, "input", len(inputs))
    compared = [_unchanged(call.name, name, value, exact) for name, value in zip(names, inputs, strict=True)]
    outputs = describe.numbered(call.name, "output", len(flat_results(result)))
    compared += [{"name": name, **columns(verdict)} for name, verdict in zip(outputs, verdicts, strict=False)]
    tensors = [place for place, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
    for place, verdict in zip(reference.written, verdicts[len(outputs) :], strict=False):
        compared[tensors[place]].update(columns(verdict))
    tool.say(tables.comparison_table(compared) + "\n")


def backward(
    tool: Tool,
    call: Call,
    grads: tuple[Any, Any],
    wanted: list[int],
    reference: Recomputation,
    verdicts: list[Verdict],
) -> None:
    """The gradients on both sides, then how each compares."""
    from op_tools import tables

    grad_inputs, grad_outputs = grads
    exact = reference.truth()
    shown = reference.own() if exact is None else exact
    rows = describe.compare_grad_rows(
        call.name, grad_outputs, [grad_inputs[place] for place in wanted], shown
    )
    title = f"{call.name} forward_id: {call.id}{_cast_text(grad_inputs, exact)}"
    tool.say(f"\n{title}\n{tool.place_text(call)}")
    tool.say(tables.describe_table(rows))
    names = describe.numbered(call.name, "grad", len(verdicts))
    tool.say(
        tables.comparison_table([{"name": n, **columns(v)} for n, v in zip(names, verdicts, strict=True)])
    )


def _unchanged(operator: str, name: str, value: Any, exact: Any) -> dict[str, Any]:
    """An input the call did not write to: the reference had a copy of it."""
    dtype = value.dtype if isinstance(value, torch.Tensor) else type(value)
    tolerance = tolerance_for(operator, dtype)
    raised = exact is not None and isinstance(value, torch.Tensor) and value.is_floating_point()
    info = f"Inconsistent dtypes: {dtype} torch.float64" if raised and dtype != torch.float64 else ""
    return {
        "name": name,
        "allclose": True,
        "max_abs_diff": 0.0,
        "max_relative_diff": 0.0,
        "atol": tolerance.atol,
        "rtol": tolerance.rtol,
        "error_info": info,
    }


def _cast_text(values: Any, exact: Any) -> str:
    if exact is None:
        return ""
    raised = {
        tensor.dtype: torch.float64
        for tensor in tensors_of(values)
        if tensor.is_floating_point() and tensor.dtype != torch.float64
    }
    return f"    cpu_dtype_cast_info(from:to): {raised}" if raised else ""


def _shown(result: Any, values: list[Any]) -> Any:
    """The reference's flat results in the form of the device's, for the table."""
    if isinstance(result, (tuple, list)):
        return tuple(values[: len(flat_results(result))])
    return values[0] if values else None
