"""The tables OpAutoCompare prints for each call in verbose mode, in the form of the product documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from op_tools import describe, tables
from op_tools.engine import Call
from op_tools.reference.recompute import Recomputation
from op_tools.trees import flat_results, map_leaves, tensors_of
from op_tools.verdict import Verdict, tolerance_for

if TYPE_CHECKING:
    from op_tools.tool import Tool

Rows = list[dict[str, Any]]


def forward(
    tool: Tool,
    call: Call,
    result: Any,
    copies: tuple[Any, Any],
    reference: Recomputation,
    verdicts: list[Verdict],
) -> Rows:
    """The call on both sides, then how each value compares; the rows of the second table."""
    exact = reference.truth()
    args, kwargs = upcast_inputs(copies, exact)
    shown = upcast_results(result, reference.own(), exact)
    rows = describe.capture_rows(call.name, call.args, call.kwargs, result)
    rows += describe.capture_rows(call.name, args, kwargs, shown, "(cpu)")
    tool.say(
        f"\n\n\n{call.name} forward_id: {call.id}{cast_text(copies, exact)}\n{tool.call_site_text(call)}"
    )
    tool.say(tables.describe_table(rows))
    outputs = flat_results(result)
    compared = _inputs(call, outputs, reference.written, verdicts, exact)
    names = describe.numbered(call.name, "output", len(outputs))
    compared += [_compared(*row, exact) for row in zip(names, outputs, verdicts, strict=False)]
    tool.say(tables.comparison_table(compared) + "\n")
    return compared


def _inputs(call: Call, outputs: list[Any], written: Any, verdicts: list[Verdict], exact: Any) -> Rows:
    """Rows of the positional arguments; one that the call wrote to is compared as it is afterwards."""
    judged = {id(value): verdict for value, verdict in zip(outputs, verdicts, strict=False)}
    tensors = call.tensors()
    judged |= {id(tensors[p]): v for p, v in zip(written, verdicts[len(outputs) :], strict=False)}
    leaves = describe.leaves(call.args)
    rows: Rows = []
    for name, leaf in zip(describe.numbered(call.name, "input", len(leaves)), leaves, strict=True):
        verdict = judged.get(id(leaf)) if isinstance(leaf, torch.Tensor) else None
        rows.append(
            _unchanged(call.name, name, leaf, exact)
            if verdict is None
            else _compared(name, leaf, verdict, exact)
        )
    return rows


def backward(
    tool: Tool,
    call: Call,
    inputs: list[torch.Tensor],
    grads: tuple[Any, Any],
    reference: Recomputation,
    verdicts: dict[int, Verdict],
) -> Rows:
    """The gradients on both sides, then how each compares; `verdicts` by the position of the input."""
    grad_inputs, grad_outputs = grads
    exact = reference.truth()
    theirs = dict(zip(verdicts, reference.own() if exact is None else exact, strict=True))
    positions = differentiable(inputs)
    rows = describe.compare_grad_rows(
        call.name, grad_outputs, [grad_inputs[p] for p in positions], [theirs.get(p) for p in positions]
    )
    tool.say(
        f"\n{call.name} forward_id: {call.id}{cast_text(grad_inputs, exact)}\n{tool.call_site_text(call)}"
    )
    tool.say(tables.describe_table(rows))
    compared = [
        _compared(name, grad_inputs[position], verdicts[position], exact)
        if position in verdicts
        else _unchanged(call.name, name, None, exact)
        for name, position in zip(grad_names(call.name, inputs), positions, strict=True)
    ]
    tool.say(tables.comparison_table(compared))
    return compared


def differentiable(inputs: list[torch.Tensor]) -> list[int]:
    """The positions of the inputs that can have a gradient at all."""
    return [
        position for position, value in enumerate(inputs) if value.is_floating_point() or value.is_complex()
    ]


def grad_names(operator: str, inputs: list[torch.Tensor]) -> list[str]:
    """One name for each input that can have a gradient, whether it has one or not."""
    return describe.numbered(operator, "grad", len(differentiable(inputs)))


def _compared(name: str, value: Any, verdict: Verdict, exact: Any) -> dict[str, Any]:
    row = {"name": name, **verdict.as_row()}
    # The heading says what the reference was computed in; a row says it where it may be the reason.
    row["error_info"] = verdict.error_info or ("" if verdict.ok else dtypes_note(value, exact))
    return row


def _unchanged(operator: str, name: str, value: Any, exact: Any) -> dict[str, Any]:
    """An input the call did not write to: the reference had a copy of it."""
    dtype = value.dtype if isinstance(value, torch.Tensor) else type(value)
    tolerance = tolerance_for(operator, dtype)
    return {
        "name": name,
        "allclose": True,
        "max_abs_diff": 0.0,
        "max_relative_diff": 0.0,
        "atol": tolerance.atol,
        "rtol": tolerance.rtol,
        "error_info": "",
    }


# --- a reference that was computed in float64 although the call was not ------------------------------------


def _is_upcast(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64


def cast_text(values: Any, exact: list[Any] | None) -> str:
    """The end of a heading: which dtypes the reference had in which others, if any."""
    if exact is None:
        return ""
    found = {tensor.dtype: torch.float64 for tensor in tensors_of(values) if _is_upcast(tensor)}
    return f"    cpu_dtype_cast_info(from:to): {found}" if found else ""


def upcast_inputs(values: Any, exact: list[Any] | None) -> Any:
    """A tree of the reference's inputs in the dtype it computed in."""
    if exact is None:
        return values
    return map_leaves(values, lambda leaf: leaf.detach().double() if _is_upcast(leaf) else leaf)


def upcast_results(result: Any, own: list[Any], exact: list[Any] | None) -> Any:
    """The reference's flat results in the form of the device's."""
    values = own if exact is None else exact
    if isinstance(result, (tuple, list)):
        return tuple(values[: len(flat_results(result))])
    return values[0] if values else None


def dtypes_note(value: Any, exact: list[Any] | None) -> str:
    """What the tables say of a value whose reference has another dtype."""
    if exact is None or not _is_upcast(value):
        return ""
    return f"Inconsistent dtypes: {value.dtype} torch.float64"
