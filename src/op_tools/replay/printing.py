"""The text of one replayed call: its folder, its values, what was compared and how long it took."""

from __future__ import annotations

from collections.abc import Sequence

from op_tools import describe, tables
from op_tools.replay.check import Comparison
from op_tools.replay.execute import Execution
from op_tools.replay.items import Captured
from op_tools.replay.model import ItemReport, Row

__all__ = ["comparison_text", "report_line", "time_text"]

_GAP = "\n\n\n"


def comparison_text(
    captured: Captured, execution: Execution, found: Comparison, forward_id: int, reference: str
) -> str:
    """The device's and the reference's values, then the comparison; the same for the gradients."""
    heading = f"{captured.name} forward_id: {forward_id}"
    place = _place(captured)
    rows = describe.compare_rows(
        captured.name,
        execution.args,
        execution.kwargs,
        execution.result,
        found.reference_args,
        found.reference_kwargs,
        found.reference_result,
        where=reference,
    )
    lines = [
        "",
        heading,
        *place,
        tables.describe_table(rows),
        tables.comparison_table(_unnumbered(found.forward)),
    ]
    if found.backward:
        rows = describe.compare_grad_rows(
            captured.name, execution.grad_outputs, execution.grads, found.reference_grads, where=reference
        )
        table = tables.comparison_table(_unnumbered(found.backward))
        lines += ["", heading, *place, tables.describe_table(rows), table]
    return "\n".join([*lines, *_verdicts([*found.forward, *found.backward]), *found.notes])


def _verdicts(rows: Sequence[Row]) -> list[str]:
    """What the table's fixed tolerances cannot say, for every value that is not simply the same."""
    return [
        f"{row['name']}: {row['verdict']}{': ' + row['reason'] if row['reason'] else ''}"
        for row in rows
        if row["verdict"] != "same"
    ]


def _place(captured: Captured) -> list[str]:
    """The line of the program that made the call, where the capture tells."""
    return [describe.printable(captured.call_site)] if captured.call_site else []


def _unnumbered(rows: Sequence[Row]) -> list[Row]:
    """The heading above the table has the number already."""
    return [{key: value for key, value in row.items() if key != "forward_id"} for row in rows]


def time_text(captured: Captured, execution: Execution, row: Row) -> str:
    """One run: values and forward time, gradients and backward time."""
    place = _place(captured)
    forward = {key: value for key, value in row.items() if key != "backward_elasped"}
    rows = describe.capture_rows(captured.name, execution.args, execution.kwargs, execution.result)
    lines = ["", *place, tables.describe_table(rows), tables.time_table([forward])]
    if execution.backward_ms is not None:
        backward = {key: value for key, value in row.items() if key != "forward_elasped"}
        rows = describe.time_grad_rows(captured.name, execution.grad_outputs, execution.grads)
        lines += [_GAP, tables.describe_table(rows), tables.time_table([backward])]
    return "\n".join(lines)


def report_line(report: ItemReport) -> str:
    """One line for a call that needs a reader's attention."""
    reason = f": {report.reason}" if report.reason else ""
    return describe.printable(f"{report.status}  {report.name or '?'}  {report.item}{reason}")
