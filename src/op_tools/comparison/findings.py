"""What a tool that compares has found: rows, lines for people, tables, and the tensors of calls that failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dicore.console import counted
from op_tools import describe, tables
from op_tools.comparison import printing
from op_tools.comparison.deferred import INPUT
from op_tools.comparison.failing_calls import FailingCalls
from op_tools.engine import Call
from op_tools.tool import Tool
from op_tools.verdict import Verdict, is_label

__all__ = ["Findings"]


class Findings(Tool):
    """The part of a comparing tool that keeps verdicts and says them."""

    def opened(self) -> None:
        self.counts: dict[str, int] = {}
        self.failed_names: dict[str, int] = {}
        self._failing = FailingCalls(self, self.settings.save_failures)
        self._shown: printing.Rows = []

    def _rows(
        self,
        call: Call,
        what: str,
        verdicts: list[Verdict],
        outputs: int | None = None,
        names: list[str] | None = None,
        inputs: tuple[Any, Any] | None = None,
    ) -> None:
        location = None
        if names is None:
            names = describe.numbered(call.name, what, len(verdicts) if outputs is None else outputs)
        names += [f"{call.name} input (written) [{n}]" for n in range(len(verdicts) - len(names))]
        results = self.open_results()
        for name, verdict in zip(names, verdicts, strict=True):
            self.counts[verdict.status] = self.counts.get(verdict.status, 0) + 1
            if location is None:
                text = call.notes.get(INPUT) or describe.brief_call(*(inputs or (call.args, call.kwargs)))
                location = {**self.location(call), "input": text}
            row = {"forward_id": call.id, **verdict.as_row(), **location, "name": name}
            if what == "grad":
                row["phase"] = "backward"
            results.extend(self.keep_row(call, row))
            if verdict.status == "fail" or is_label(verdict.status):
                self._tell(call, name, verdict, row)
        if any(verdict.status == "fail" for verdict in verdicts):
            results.flush()  # a worker may be killed before the timer does it

    def _tell(self, call: Call, name: str, verdict: Verdict, row: dict[str, Any]) -> None:
        seen = self.failed_names.get(call.name, 0)
        self.failed_names[call.name] = seen + 1
        if seen >= 3 and not self.settings.verbose:
            return
        word = "WRONG" if verdict.status == "fail" else verdict.status.replace("_", " ")
        owner = f" in the backward of {row['forward_name']}" if row.get("forward_name") else ""
        reason, _, example = verdict.reason.partition(": ")
        lines = [
            f"op_tools: {word}: {name}{owner}",
            f"    at {row['call_site']}",
            f"    {reason}",
            f"    {example}" if example else "",
            f"    max_abs_diff {tables.figure(verdict.max_abs_diff)}, forward_id {call.id}, step {call.step}",
        ]
        self.say("\n".join(filter(None, lines)))

    def _show(self, call: Call, rows: printing.Rows) -> None:
        """Keep what was printed for the table at the end; as for all rows, not more than the cache may hold."""
        self._shown += [{"forward_id": call.id, **row} for row in rows]
        if len(self._shown) >= self.settings.max_cache_size:
            self._show_summary()

    def _show_summary(self) -> None:
        if self._shown:
            self.say(tables.comparison_table(self._shown))
        self._shown = []

    def _note(self, call: Call, what: str, reason: str) -> None:
        """A call that was not compared is a row too."""
        self.counts["skipped"] = self.counts.get("skipped", 0) + 1
        row = {**self.row_of(call), "name": f"{call.name} {what}", "verdict": "skipped", "error_info": reason}
        self.open_results().extend(self.keep_row(call, row))

    def keep_row(self, call: Call, row: dict[str, Any]) -> Sequence[dict[str, Any]]:
        """The rows to be written, with this one."""
        return (row,)

    def why_nothing(self) -> str:
        return "no call on a watched device was listed"

    def _conclude_run(self) -> None:
        lost = self._failing.close()
        results = self.close_results()
        if results is None:
            self.say(f"op_tools: {type(self).__name__} compared nothing: {self.why_nothing()}")
            return
        self._show_summary()
        counts = ", ".join(f"{count:,} {status}" for status, count in sorted(self.counts.items()))
        wrong = sorted(self.failed_names, key=lambda name: -self.failed_names[name])
        told = f"\n    look at {', '.join(wrong[:5])}" if wrong else ""
        judged = counted(sum(self.counts.values()), "value", ",")
        self.say(f"op_tools: {type(self).__name__} judged {judged}: {counts}{told}")
        self.say(f"    rows {results.saved}" if results.problem else f"    rows: {results.csv_path}")
        if lost:
            self.say(f"    failing calls were not all saved: {lost}")
