"""Replays one captured call from beginning to end. Whatever happens becomes a report; nothing is raised."""

from __future__ import annotations

import warnings
from typing import Any

from op_tools import describe
from op_tools.captured.admission import NotReplayable, TooLarge, admitted
from op_tools.captured.judge import CallJudge
from op_tools.captured.load import CapturedCall, Item, read_item
from op_tools.captured.move import resolve_device
from op_tools.captured.run import CallRunner, Execution
from op_tools.names import RefusedName
from op_tools.replay.check import Comparison, compare, overall
from op_tools.replay.printing import comparison_text, time_text
from op_tools.replay.report import ItemReport, ItemStatus, Options, Row
from op_tools.storage import CaptureDamaged, CaptureError, CaptureRefused
from op_tools.trees import flat_results
from op_tools.verdict.closeness import identical

__all__ = ["replay_item"]

# More runs than this are measured for their times, and nobody reads a table for each.
_MOST_PRINTED_RUNS = 10
_LONGEST_REASON = 500


def replay_item(item: Item, options: Options, first_id: int = 1) -> ItemReport:
    """Load, admit, run and judge one call. `first_id` numbers its first run."""
    report = ItemReport(item.label)
    try:
        captured = read_item(item)
        report.name = captured.name
        device = resolve_device(options.device)
        func, captured = admitted(captured, device, allow=options.allow, memory_limit=options.memory_limit)
        runner = CallRunner(
            func, captured, device, sync=options.sync_time_measure, only_forward=options.only_run_forward
        )
        judge = CallJudge(func, captured, options.reference) if options.acc_check else None
        _Replay(captured, runner, judge, options, report, first_id).go()
    except NotReplayable as error:
        _close(report, "not replayable", str(error))
    except (RefusedName, TooLarge, CaptureRefused) as error:
        _close(report, "refused", str(error))
    except CaptureDamaged as error:
        _close(report, "error", str(error))
    except CaptureError as error:
        _close(report, "not replayable", str(error))
    except Exception as error:  # the operator's own, or the device's: the next item may be fine
        _close(report, "error", f"{type(error).__name__}: {error}")
    return report


def _close(report: ItemReport, status: ItemStatus, reason: str) -> None:
    report.status = status
    report.reason = " ".join(reason.split())[:_LONGEST_REASON]


class _Replay:
    def __init__(
        self,
        captured: CapturedCall,
        runner: CallRunner,
        judge: CallJudge | None,
        options: Options,
        report: ItemReport,
        first_id: int,
    ) -> None:
        self.captured = captured
        self.runner = runner
        self.judge = judge
        self.options = options
        self.report = report
        self.first_id = first_id
        self.texts = [describe.printable(report.item), ""]
        self.first_values: list[Any] | None = None
        self.notes = list(captured.notes)

    def go(self) -> None:
        with warnings.catch_warnings():
            # Beta layouts, deprecated calls: they were the model's business when it was captured.
            warnings.simplefilter("ignore")
            for number in range(self.options.run_times):
                self._once(self.first_id + number, printed=number < _MOST_PRINTED_RUNS)
        self.report.text = "\n".join(self.texts)
        self.report.status = overall(self.report.rows)
        self.report.reason = self._reason()

    def _once(self, forward_id: int, *, printed: bool) -> None:
        execution = self.runner.run()
        if self.judge is not None and self._is_news(self.judge, execution):
            found = compare(self.judge, execution, forward_id)
            self.report.rows += [*found.forward, *found.backward]
            self.notes += found.notes
            self._say_compared(self.judge, execution, found, forward_id)
        row = self._time_row(execution, forward_id)
        self.report.times.append(row)
        if self.options.verbose and self.options.sync_time_measure and printed:
            self.texts.append(time_text(self.captured, execution, row))

    def _is_news(self, judge: CallJudge, execution: Execution) -> bool:
        """A run that gave what the first gave needs no second verdict; one that did not is worth a row."""
        if self.options.run_times == 1 or judge.random:
            return True
        values = [judge.near(value) for value in (*flat_results(execution.result), *execution.grads)]
        first, self.first_values = self.first_values, self.first_values or values
        return first is None or not all(map(identical, first, values))

    def _say_compared(
        self, judge: CallJudge, execution: Execution, found: Comparison, forward_id: int
    ) -> None:
        failed = any(row["verdict"] == "fail" for row in self.report.rows)
        if self.options.verbose or failed:
            self.texts.append(comparison_text(judge, execution, found, forward_id))

    def _time_row(self, execution: Execution, forward_id: int) -> Row:
        row: Row = {
            "name": self.captured.name,
            "forward_id": forward_id,
            "forward_elasped": execution.forward_ms,
            "unit": "ms",
        }
        if execution.backward_ms is not None:
            row["backward_elasped"] = execution.backward_ms
        if forward_id == self.first_id:
            row["input"] = describe.as_plain({"args": execution.args, "kwargs": execution.kwargs})
            row["output"] = describe.as_plain({"args": (execution.result,)})
            if execution.wants_grad:
                row["grad_inputs"] = describe.as_plain({"args": execution.grads})
                row["grad_outputs"] = describe.as_plain({"args": execution.grad_outputs})
        return row

    def _reason(self) -> str:
        rows = self.report.rows
        said = [f"{row['name']}: {row['reason']}" for row in rows if row["verdict"] == "fail"]
        said += [f"{row['name']}: {row['reason']}" for row in rows if row["verdict"] == "lower_precision"]
        if self.report.status == "not compared":
            said += [row["reason"] for row in rows if row["verdict"] == "skipped"]
        return "; ".join([*said[:3], *self.notes])[:_LONGEST_REASON]
