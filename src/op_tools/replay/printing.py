"""The text of one replayed call: its folder, its values, what was compared and how long it took."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from dicore.console import WIDTH
from op_tools import describe, tables
from op_tools.captured.judge import CallJudge
from op_tools.captured.load import CapturedCall
from op_tools.captured.run import Execution
from op_tools.comparison.printing import cast_text, dtypes_note, upcast_inputs, upcast_results
from op_tools.reference.recompute import Recomputation
from op_tools.replay.check import ReplayComparison, overall
from op_tools.replay.report import ItemReport, Row
from op_tools.trees import flat_results

__all__ = ["comparison_table", "comparison_text", "report_line", "time_text", "wrapped"]

_GAP = "\n\n\n"
# An optimizer step over a list has three rows for each of its tensors.
_MOST_ROWS = 40


def comparison_text(judge: CallJudge, execution: Execution, found: ReplayComparison, forward_id: int) -> str:
    """The device's and the reference's values, then the comparison; the same for the gradients."""
    captured, reference = judge.captured, str(judge.device)
    heading = f"{captured.name} forward_id: {forward_id}"
    copies = judge.inputs
    own, exact = _both(found.recomputed)
    args, kwargs = upcast_inputs(copies, exact)
    shown = upcast_results(execution.result, own, exact)
    rows = describe.capture_rows(captured.name, execution.args, execution.kwargs, execution.result)
    rows += describe.capture_rows(captured.name, args, kwargs, shown, f"({reference})")
    values = {"input": describe.leaves(execution.args), "output": flat_results(execution.result)}
    lines = [
        "",
        heading + cast_text(copies, exact),
        *_call_site(captured),
        tables.describe_table(rows),
        tables.comparison_table(_noted(found.forward, captured.name, values, exact)),
    ]
    if found.backward:
        own, exact = _both(found.recomputed_grads)
        given = [judge.near(grad) for grad in execution.grad_outputs]
        rows = describe.compare_grad_rows(
            captured.name, given, execution.grads, own if exact is None else exact, where=reference
        )
        table = tables.comparison_table(
            _noted(found.backward, captured.name, {"grad": execution.grads}, exact)
        )
        heading += cast_text(execution.grads, exact)
        lines += ["", heading, *_call_site(captured), tables.describe_table(rows), table]
    return "\n".join([*lines, *_verdicts([*found.forward, *found.backward]), *found.notes])


def comparison_table(judge: CallJudge, execution: Execution, found: ReplayComparison, forward_id: int) -> str:
    """The call on a line, each value with its verdict in a table of 100 columns, and what is to be said of the verdicts."""
    captured = judge.captured
    rows = [*found.forward, *found.backward]
    shown = [{**row, "name": row["name"].removeprefix(captured.name).strip()} for row in rows]
    called = f"{captured.name}{describe.brief_call(execution.args, execution.kwargs)}"
    lines = [
        f"{captured.name} forward_id: {forward_id}    verdict: {overall(rows)}",
        *(line for text in _call_site(captured) for line in wrapped(f"at {text}")),
        *wrapped(describe.printable(f"{called} -> {describe.brief(execution.result)}")),
        tables.verdict_table(_of_interest(shown)),
    ]
    if len(shown) > _MOST_ROWS:
        lines.append(f"{len(shown) - _MOST_ROWS} rows more: the CSV file has them")
    for text in (*_verdicts(shown)[:_MOST_ROWS], *found.notes):
        lines += wrapped(describe.printable(text))
    return "\n".join(lines)


def _of_interest(rows: Sequence[Row]) -> list[Row]:
    """Of many rows those that are not simply the same, then the first others, in their order."""
    ranked = sorted(range(len(rows)), key=lambda index: rows[index]["verdict"] == "same")
    return [rows[index] for index in sorted(ranked[:_MOST_ROWS])]


def wrapped(text: str) -> list[str]:
    """Lines of 100 columns, the first at the left."""
    return textwrap.wrap(
        text, WIDTH, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
    )


def _both(reference: Recomputation | None) -> tuple[list[Any], list[Any] | None]:
    """What the reference gave in the call's own dtype, and in float64."""
    return ([], None) if reference is None else (reference.own(), reference.truth())


def _noted(
    rows: Sequence[Row], name: str, values: Mapping[str, Sequence[Any]], exact: list[Any] | None
) -> list[Row]:
    """Rows for the table: the heading has the number already, and where one is wrong the reference's dtype is said."""
    notes = {
        row_name: dtypes_note(value, exact)
        for what, items in values.items()
        for row_name, value in zip(describe.numbered(name, what, len(items)), items, strict=True)
    }
    shown = [{key: value for key, value in row.items() if key != "forward_id"} for row in rows]
    for row in shown:
        if row["verdict"] == "fail":
            row["error_info"] = row["error_info"] or notes.get(row["name"], "")
    return shown


def _verdicts(rows: Sequence[Row]) -> list[str]:
    """What the table's fixed tolerances cannot say, for every value that is not simply the same."""
    return [
        f"{row['name']}: {row['verdict']}{': ' + row['reason'] if row['reason'] else ''}"
        for row in rows
        if row["verdict"] != "same"
    ]


def _call_site(captured: CapturedCall) -> list[str]:
    """The line of the program that made the call, where the capture tells."""
    return [describe.printable(captured.call_site)] if captured.call_site else []


def time_text(captured: CapturedCall, execution: Execution, row: Row) -> str:
    """One run: values and forward time, gradients and backward time."""
    call_site = _call_site(captured)
    forward = {key: value for key, value in row.items() if key != "backward_elasped"}
    rows = describe.capture_rows(captured.name, execution.args, execution.kwargs, execution.result)
    lines = ["", *call_site, tables.describe_table(rows), tables.time_table([forward])]
    if execution.backward_ms is not None:
        backward = {key: value for key, value in row.items() if key != "forward_elasped"}
        rows = describe.time_grad_rows(captured.name, execution.grad_outputs, execution.grads)
        lines += [_GAP, tables.describe_table(rows), tables.time_table([backward])]
    return "\n".join(lines)


def report_line(report: ItemReport) -> str:
    """One line for a call that needs a reader's attention."""
    reason = f": {report.reason}" if report.reason else ""
    return describe.printable(f"{report.status}  {report.name or '?'}  {report.item}{reason}")
