"""What a comparison of two runs comes to."""

from __future__ import annotations

import contextlib
import copy
import math
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from op_tools.diff.pairing import PairedCall
from op_tools.diff.sequence import RecordedCall
from op_tools.results import Results

__all__ = ["STATUSES", "Mode", "Report", "Rows", "described"]

Mode = Literal["captures", "autocompare", "observe"]
STATUSES = ("same", "pass", "lower_precision", "wrong", "suspect", "not judged")
REPORTED = frozenset({"wrong", "suspect"})
_MOST_LISTED = 100
# Entries that a report holds. Of more it holds what is to be shown and counts the rest.
MOST_HELD = 20_000


@dataclass
class _Operator:
    """The calls of one operator: how many, and what is to be said of them."""

    calls: int = 0
    wrong: int = 0
    lower_precision: int = 0
    sides: set[str] = field(default_factory=set)
    worst: float = 0.0

    def add(self, entry: PairedCall) -> None:
        self.calls += 1
        reported = entry.status in REPORTED
        if not reported and entry.status != "lower_precision":
            return
        self.wrong += reported
        self.lower_precision += not reported
        self.sides.update({"both": "AB"}.get(entry.side, entry.side))
        size = entry.figures.get("error_over_bound", math.nan)
        self.worst = self.worst if math.isnan(size) else max(size, self.worst)


@dataclass
class _Counted:
    """Entries that are counted and no longer held."""

    pairings: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    operators: dict[str, _Operator] = field(default_factory=dict)
    parted: PairedCall | None = None

    def add(self, entry: PairedCall) -> None:
        self.pairings[entry.pairing] += 1
        self.statuses[entry.status] += 1
        self.lost += entry.is_lost
        self.operators.setdefault(entry.call.name, _Operator()).add(entry)
        if entry.same_outputs is False and (self.parted is None or entry.order < self.parted.order):
            self.parted = entry


@dataclass
class Report:
    """The entries of a comparison; what is printed, logged and returned is derived from them."""

    a: Path
    b: Path
    mode: Mode
    entries: list[PairedCall]
    notes: list[str] = field(default_factory=list)
    unread: int = 0  # captures and logs that are no entry because they do not even say which call they are of
    _counted: _Counted = field(default_factory=_Counted)

    def add(self, entries: Iterable[PairedCall]) -> None:
        """More entries, which are judged. Of very many those are held that are to be shown, the first of each kind."""
        self.entries += entries
        if len(self.entries) <= 2 * MOST_HELD:
            return
        self.entries.sort(key=lambda entry: (entry.status not in REPORTED, _is_right(entry), entry.order))
        for entry in self.entries[MOST_HELD:]:
            self._counted.add(entry)
        del self.entries[MOST_HELD:]

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
        differing = [entry for entry in self.entries if entry.same_outputs is False]
        differing += [self._counted.parted] if self._counted.parted is not None else []
        return min(differing, key=lambda entry: entry.order, default=None)

    def only_in(self, side: str) -> list[PairedCall]:
        """Calls that one of the runs has alone."""
        alone = (entry for entry in self.entries if entry.pairing == f"only in {side}")
        return sorted(alone, key=lambda entry: (entry.rank, entry.position))

    def counts(self) -> dict[str, int]:
        """Calls by pairing and by status."""
        pairings = self._counted.pairings + Counter(entry.pairing for entry in self.entries)
        statuses = self._counted.statuses + Counter(entry.status for entry in self.entries)
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
        counts = self.counts()
        return sum(counts[status] for status in STATUSES if status != "not judged")

    @property
    def lost(self) -> int:
        """How many calls were not judged because a run has not what is needed: it is missing, damaged or incomplete."""
        return self.unread + self._counted.lost + sum(entry.is_lost for entry in self.entries)

    def operators(self) -> list[dict[str, Any]]:
        """Operators with wrong or suspect calls, or lower precision: worst first."""
        found = copy.deepcopy(self._counted.operators)
        for entry in self.entries:
            found.setdefault(entry.call.name, _Operator()).add(entry)
        rows = [
            {**vars(one), "name": name, "sides": "".join(sorted(one.sides))}
            for name, one in found.items()
            if one.wrong or one.lower_precision
        ]
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


def _is_right(entry: PairedCall) -> bool:
    """Whether there is nothing to say of it."""
    return entry.pairing == "aligned" and entry.status != "lower_precision" and not entry.is_lost


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


class Rows:
    """One row per entry, written below a folder as entries come."""

    def __init__(self, out: Path) -> None:
        self._results = Results(os.path.join(out, FOLDER), NAME, COLUMNS, tells=False)

    def add(self, entries: Iterable[PairedCall]) -> None:
        self._results.extend([described(entry) for entry in entries])

    def discard(self) -> None:
        """Take back what was written: half a comparison must not pass for one."""
        written = [self._results.csv_path]
        if self._results.log is not None:
            written.append(str(self._results.log.path))
            self._results.close()
        for path in written:
            with contextlib.suppress(OSError):
                os.remove(path)

    def close(self) -> str:
        """The path of the CSV file. Raises OSError."""
        self._results.close()
        if self._results.problem:
            raise OSError(self._results.problem)
        return self._results.csv_path
