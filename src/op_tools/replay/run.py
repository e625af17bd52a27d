"""Replays one captured call from beginning to end. Whatever happens becomes a report; nothing is raised."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from op_tools import describe
from op_tools.captured.admission import NotReplayable, TooLarge, admitted
from op_tools.captured.judge import CallJudge
from op_tools.captured.load import PARTS, Item, read_item
from op_tools.captured.move import resolve_device
from op_tools.captured.run import CallRunner, Execution
from op_tools.names import RefusedName
from op_tools.replay.check import compare, overall, unread_rows
from op_tools.replay.printing import comparison_table, comparison_text, time_text
from op_tools.replay.report import FAILED, ItemReport, ItemStatus, Options, Row
from op_tools.storage import CaptureDamaged, CaptureError, CaptureMissing, CaptureRefused
from op_tools.trees import flat_results
from op_tools.verdict.closeness import identical

__all__ = ["replay_item"]

# More runs than this are measured for their times, and nobody reads a table for each.
_MOST_PRINTED_RUNS = 10
_LONGEST_REASON = 500


def replay_item(item: Item, options: Options, first_id: int = 1) -> ItemReport:
    """Load, admit, run and judge one call. `first_id` numbers its first run where the capture has no number."""
    report = ItemReport(item.label)
    try:
        captured = read_item(item, PARTS[:1] if options.only_run_forward else PARTS)
        report.name = captured.name
        device = resolve_device(options.device)
        func, captured = admitted(captured, device, allow=options.allow, memory_limit=options.memory_limit)
        runner = CallRunner(
            func, captured, device, sync=options.sync_time_measure, only_forward=options.only_run_forward
        )
        judge = CallJudge(func, captured, options.reference) if options.acc_check else None
        _Replay(runner, judge, options, report, first_id).go()
    except (RefusedName, TooLarge, CaptureRefused) as error:
        _close(report, "refused", str(error))
    except (CaptureDamaged, CaptureMissing) as error:
        _close(report, "error", str(error))
    except (NotReplayable, CaptureError) as error:
        _close(report, "not replayable", str(error))
    except Exception as error:  # the operator's own, or the device's: the next item may be fine
        _close(report, "error", f"{type(error).__name__}: {error}")
    return report


def _close(report: ItemReport, status: ItemStatus, reason: str) -> None:
    report.status = status
    report.reason = " ".join(reason.split())[:_LONGEST_REASON]


@dataclass
class _Replay:
    runner: CallRunner
    judge: CallJudge | None
    options: Options
    report: ItemReport
    first_id: int
    first_values: list[Any] | None = None

    def go(self) -> None:
        self.texts = [describe.printable(self.report.item), *([""] if self.options.documented else [])]
        self.notes: list[str] = []
        with warnings.catch_warnings():
            # Beta layouts, deprecated calls: they were the model's business when it was captured.
            warnings.simplefilter("ignore")
            for number in range(self.options.run_times):
                self._once(number)
        if self.judge is None:
            self.report.rows += unread_rows(self.runner.captured, self._forward_id(0))
        self.report.text = "\n".join(self.texts)
        self.report.status = overall(self.report.rows)
        self.report.reason = self._reason()

    def _forward_id(self, number: int) -> int:
        said = self.runner.captured.forward_id
        return self.first_id + number if said is None else said

    def _once(self, number: int) -> None:
        forward_id = self._forward_id(number)
        execution = self.runner.run()
        if self.judge is not None and self._is_news(self.judge, execution):
            found = compare(self.judge, execution, forward_id, only_forward=self.options.only_run_forward)
            self.report.rows += [{**row, "run": number + 1} for row in (*found.forward, *found.backward)]
            self.notes += found.notes
            if self.options.verbose or any(row["verdict"] in FAILED for row in self.report.rows):
                shown = comparison_text if self.options.documented else comparison_table
                self.texts.append(shown(self.judge, execution, found, forward_id))
        row = self._time_row(execution, forward_id, first=number == 0)
        self.report.times.append(row)
        printed = self.options.verbose and self.options.documented and number < _MOST_PRINTED_RUNS
        if self.options.sync_time_measure and printed:
            self.texts.append(time_text(self.runner.captured, execution, row))

    def _is_news(self, judge: CallJudge, execution: Execution) -> bool:
        """A run that gave what the first gave needs no second verdict; one that did not is worth a row."""
        if self.options.run_times == 1 or judge.random:
            return True
        values = [judge.near(value) for value in (*flat_results(execution.result), *execution.grads)]
        first, self.first_values = self.first_values, self.first_values or values
        return first is None or not all(map(identical, first, values))

    def _time_row(self, execution: Execution, forward_id: int, *, first: bool) -> Row:
        row: Row = {
            "name": self.runner.captured.name,
            "forward_id": forward_id,
            "forward_elasped": execution.forward_ms,
            "unit": "ms",
        }
        if execution.backward_ms is not None:
            row["backward_elasped"] = execution.backward_ms
        if first:
            row["input"] = describe.as_plain({"args": execution.args, "kwargs": execution.kwargs})
            row["output"] = describe.as_plain({"args": (execution.result,)})
            if execution.wants_grad:
                row["grad_inputs"] = describe.as_plain({"args": execution.grads})
                row["grad_outputs"] = describe.as_plain({"args": execution.grad_outputs})
        return row

    def _reason(self) -> str:
        rows = self.report.rows
        worst = ("fail", "error", "lower_precision")
        bad = [row for verdict in worst for row in rows if row["verdict"] == verdict]
        said = [f"{row['name']}: {row['reason']}" for row in bad]
        if self.report.status == "not compared":
            said += [row["reason"] for row in rows if row["verdict"] == "skipped"]
        return "; ".join([*said[:3], *self.notes])[:_LONGEST_REASON]
