"""What a comparison of two runs comes to."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from op_tools.diff.pairing import PairedCall
from op_tools.diff.sequence import RecordedCall
from op_tools.results import Results

__all__ = ["STATUSES", "Mode", "Report", "described", "write_rows"]

Mode = Literal["captures", "autocompare", "observe"]
STATUSES = ("same", "pass", "lower_precision", "wrong", "suspect", "not judged")
REPORTED = frozenset({"wrong", "suspect"})
_MOST_LISTED = 100


@dataclass
class Report:
    """All entries of a comparison; what is printed, logged and returned is derived from them."""

    a: Path
    b: Path
    mode: Mode
    entries: list[PairedCall]
    notes: list[str] = field(default_factory=list)
    unread: int = 0  # captures that are no entry because they do not even say which call they are of

    @property
    def reported(self) -> list[PairedCall]:
        """Wrong or suspect calls, first one first."""
        return sorted((entry for entry in self.entries if entry.status in REPORTED), key=lambda e: e.order)

    @property
    def first(self) -> PairedCall | None:
        return next(iter(self.reported), None)

    @property
    def parted(self) -> PairedCall | None:
        """Where the values of the two runs part: the first results that differ.

        Inputs alone do not tell: what a call writes to may hold anything before it.
        """
        differing = (e for e in self.entries if e.same_outputs is False)
        return min(differing, key=lambda e: e.order, default=None)

    def only_in(self, side: str) -> list[PairedCall]:
        """Calls that one of the runs has alone."""
        return [entry for entry in self.entries if entry.pairing == f"only in {side}"]

    def counts(self) -> dict[str, int]:
        """Calls by pairing and by status."""
        pairings = Counter(entry.pairing for entry in self.entries)
        statuses = Counter(entry.status for entry in self.entries)
        return {
            **{name: pairings[name] for name in ("aligned", "only in A", "only in B")},
            **{name: statuses[name] for name in STATUSES},
        }

    @property
    def exit_code(self) -> int:
        """1: something is wrong, suspect or in one run only; 5: nothing was compared, or not in both runs;
        0: no difference but rounding."""
        counts = self.counts()
        if self.first is not None or counts["only in A"] or counts["only in B"]:
            return 1
        return 0 if self.judged and not self.lost else 5

    @property
    def judged(self) -> int:
        """How many calls were judged."""
        return sum(entry.status != "not judged" for entry in self.entries)

    @property
    def lost(self) -> int:
        """How many calls were not judged because a run has not what is needed: it is missing, damaged or incomplete."""
        return self.unread + sum(entry.is_lost for entry in self.entries)

    def operators(self) -> list[dict[str, Any]]:
        """Operators with wrong or suspect calls, or lower precision: worst first."""
        found: dict[str, list[PairedCall]] = {}
        for entry in self.entries:
            if entry.status in REPORTED or entry.status == "lower_precision":
                found.setdefault(entry.call.name, []).append(entry)
        calls = Counter(entry.call.name for entry in self.entries)
        rows = [_operator(name, entries, calls[name]) for name, entries in found.items()]
        return sorted(rows, key=lambda row: (-row["wrong"], -row["worst"], row["name"]))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for --json; lists are cut at a hundred."""
        first, parted = self.first, self.parted
        return {
            "a": str(self.a),
            "b": str(self.b),
            "mode": self.mode,
            "exit_code": self.exit_code,
            "first": first and described(first),
            "parted": parted and described(parted),
            "counts": self.counts(),
            "lost": self.lost,
            "operators": self.operators(),
            "wrong": [described(entry) for entry in self.reported[:_MOST_LISTED]],
            "only_in_a": [described(entry) for entry in self.only_in("A")[:_MOST_LISTED]],
            "only_in_b": [described(entry) for entry in self.only_in("B")[:_MOST_LISTED]],
            "notes": self.notes,
        }


def _operator(name: str, entries: list[PairedCall], calls: int) -> dict[str, Any]:
    sizes = [entry.figures.get("error_over_bound", math.nan) for entry in entries]
    return {
        "name": name,
        "calls": calls,
        "wrong": sum(entry.status in REPORTED for entry in entries),
        "lower_precision": sum(entry.status == "lower_precision" for entry in entries),
        "sides": "".join(sorted({{"both": "AB"}.get(e.side, e.side) for e in entries if e.side})),
        "worst": max((size for size in sizes if not math.isnan(size)), default=0.0),
    }


def described(entry: PairedCall) -> dict[str, Any]:
    """One entry as plain data: the usual columns of a row, what was found, and the folders of both captures."""
    row = entry.call.row
    unpaired = entry.pairing != "aligned" and entry.status not in REPORTED
    return {
        **{key: row[key] for key in _OF_ROW if key in row},
        "status": entry.pairing if unpaired else entry.status,
        "pairing": entry.pairing,
        "side": entry.side,
        "verdict": _VERDICTS.get(entry.status, entry.status),
        "reason": entry.reason,
        **entry.figures,
        "folder_a": _folder(entry.a),
        "folder_b": _folder(entry.b),
    }


def _folder(call: RecordedCall | None) -> str:
    """Absolute: the row may be read from anywhere."""
    return str(call.folder.absolute()) if call is not None and call.folder is not None else ""


_OF_ROW = [
    "forward_id",
    "name",
    "call_site",
    "module",
    "step",
    "rank",
    "world_size",
    "phase",
    "level",
    "forward_name",
]
# As the rows of other tools call it.
_VERDICTS = {"wrong": "fail", "not judged": "skipped"}


FOLDER, NAME = "op_diff_result", "op_diff_info"
COLUMNS = (
    "forward_id", "name", "status", "side", "verdict", "reason", "pairing", "allclose", "cosine_similarity",
    "max_abs_diff", "max_relative_diff", "error_over_bound", "call_site", "module", "step", "rank", "phase", "level",
    "forward_name", "folder_a", "folder_b",
)  # fmt: skip


def write_rows(report: Report, out: Path) -> str:
    """Write one row per entry below `out`; the path of the CSV file. Raises OSError."""
    results = Results(os.path.join(out, FOLDER), NAME, COLUMNS, tells=False)
    results.extend([described(entry) for entry in report.entries])
    results.close()
    if results.problem:
        raise OSError(results.problem)
    return results.csv_path
