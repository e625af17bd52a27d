"""Compares two runs by their logs alone. Without tensors nothing can be proved: calls are suspected, never called wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from op_tools.categories import RANDOM, UNINITIALISED, base_name
from op_tools.diff.judging import FIGURES
from op_tools.diff.pairing import PairedCall, check_levels, common_ranks, pair_rank
from op_tools.diff.report import Mode, Report, Rows
from op_tools.diff.sequence import RankedLog, RecordedCall
from op_tools.runs import NOTHING, USAGE, BadInput, Run

__all__ = ["compare_logs"]

# Statistics of two runs are far apart where they differ by this share of the values' size, and so many times more than
# anything before.
LEAST_DIFFERENCE, GROWTH = 1e-3, 16.0
_CLASSES = ("same", "pass", "lower_precision", "fail")
_TENSOR = re.compile(r"\b\w+\[[\d, ]*\](?=(?: torch\.\w+)?@)")
_HOW = (
    "Run both with captures: `ditorch run --tool capture script.py`, or op_tools.OpCapture, each with its own "
    "OP_TOOLS_RESULTS; with OP_CAPTURE_LEVEL=aten kernels inside backward are found too."
)

_NO_STATISTICS = (
    "the observe logs have no statistics: only missing calls, shapes and dtypes were compared. "
    "OP_OBSERVE_STATISTICS=1 notes the statistics of every output."
)


def compare_logs(
    paths: tuple[Path, Path],
    runs: tuple[Run | None, Run | None],
    captured: tuple[int, int],
    *,
    rows: Rows | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """What logs of autocompare or observe tell of two runs that do not both have captures. Raises BadInput.

    Ranks are read one after the other; of calls beyond what is shown only the row is kept, in `rows`, and the count.
    """
    judges: dict[Mode, Callable[[Sequence[PairedCall]], bool]]
    judges = {"autocompare": _by_verdict, "observe": _by_statistics}
    both = [run for run in runs if run is not None]
    tool = next((tool for tool in judges if len(both) == 2 and all(run.has(tool) for run in both)), None)
    if tool is None:
        raise _nothing_to_compare(paths, runs, captured)
    report = Report(*paths, mode=tool, entries=[])
    first, second = (RankedLog(run, tool) for run in both)
    judged = False
    for rank, calls in _common_calls(first, second, paths, tool, report.notes, progress):
        entries = pair_rank(rank, *calls)
        judged |= judges[tool](entries)
        if rows is not None:
            rows.add(entries)
        report.add(entries)
    for name, log in (("A", first), ("B", second)):
        report.notes += [f"{name}: {note}" for note in log.notes]
        report.unread += log.unread
    report.notes.append(
        f"compared by the {tool} logs: without captures a call can be suspected, not proved wrong. {_HOW}"
    )
    if not judged and tool == "observe":
        report.notes.append(_NO_STATISTICS)
    return report


def _common_calls(
    a: RankedLog,
    b: RankedLog,
    paths: tuple[Path, Path],
    tool: str,
    notes: list[str],
    progress: Callable[[int, int], None] | None,
) -> Iterator[tuple[int, tuple[list[RecordedCall], list[RecordedCall]]]]:
    """The calls of the ranks that both runs have, rank by rank. Raises BadInput where a run has none."""
    counts = [0, 0]
    for log, path in zip((a, b), paths, strict=True):
        if not log.ranks:
            raise _no_rows(tool, path)
    ranks = common_ranks(a.ranks, b.ranks, notes)
    for done, rank in enumerate(ranks, 1):
        calls = a.calls(rank), b.calls(rank)
        counts = [before + len(more) for before, more in zip(counts, calls, strict=True)]
        if all(calls):
            first, second = ({call.level for call in side} for side in calls)
            check_levels(first, second)
            yield rank, calls
        elif any(calls):
            notes.append(f"only {'A' if calls[0] else 'B'} has rows of rank {rank}: not compared.")
        if progress is not None:
            progress(done, len(ranks))
    for count, path in zip(counts, paths, strict=True):
        if not count:
            raise _no_rows(tool, path)


def _no_rows(tool: str, path: Path) -> BadInput:
    return BadInput(f"the {tool} log of {path} has no rows: no call was watched. {_HOW}", NOTHING)


def _nothing_to_compare(
    paths: tuple[Path, Path], runs: tuple[Run | None, Run | None], captured: tuple[int, int]
) -> BadInput:
    told = []
    for name, path, run, count in zip("AB", paths, runs, captured, strict=True):
        logs = ", ".join(sorted(run.logs)) if run is not None else ""
        has = f"{count} captured calls" if count else "no captured call"
        told.append(f"{name} ({path}) has {has}{f' and logs of {logs}' if logs else ''}")
    # A capture that captured nothing was a run with nothing to compare; no capture at all is the wrong folder.
    without = [run for run, count in zip(runs, captured, strict=True) if run is not None and not count]
    empty = any(run.has("capture") or run.captures is not None for run in without)
    return BadInput(
        f"{'; '.join(told)}. Both must have captures, or both logs of autocompare or observe. {_HOW}",
        NOTHING if empty else USAGE,
    )


# --- autocompare ------------------------------------------------------------------------------------------------


def _by_verdict(entries: Sequence[PairedCall]) -> bool:
    """Suspect: what one run's comparison with the CPU passed and the other's did not."""
    for entry in entries:
        sides = {name: call.row for name, call in (("A", entry.a), ("B", entry.b)) if call is not None}
        verdicts = {name: str(row.get("verdict")) for name, row in sides.items()}
        severities = {name: _CLASSES.index(said) for name, said in verdicts.items() if said in _CLASSES}
        if not severities:
            entry.reason = "no verdict in the log"
            continue
        worst = max(reversed(severities), key=lambda name: severities[name])
        entry.status = _CLASSES[severities[worst]]
        row = sides[worst]
        entry.figures = {key: row[key] for key in FIGURES if key in row}
        entry.reason = str(row.get("reason") or "")
        failed = [name for name in severities if severities[name] == len(_CLASSES) - 1]
        if failed or (len(severities) == 2 and max(severities.values()) - min(severities.values()) > 1):
            entry.status = "suspect"
            entry.side = "both" if len(failed) == 2 else worst
            said = " and ".join(f"{verdict} in {name}" for name, verdict in verdicts.items())
            entry.reason = f"{said}: {entry.reason}"
    return True


# --- observe ----------------------------------------------------------------------------------------------------


def _by_statistics(entries: Sequence[PairedCall]) -> bool:
    """Suspect: changed shapes, values that are not finite in one run, statistics that suddenly part.

    Whether there were statistics.
    """
    counted = False
    largest: dict[int, float] = {}
    for entry in sorted(entries, key=lambda entry: entry.order):
        if entry.a is None or entry.b is None:
            continue
        if changed := _changed_shapes(entry):
            entry.status, entry.reason = "suspect", changed
            continue
        entry.status = "same"
        pairs = _statistics(entry)
        # Two right runs may give any values: random numbers, memory nobody has written to.
        if pairs is None or base_name(entry.b.name) in RANDOM | UNINITIALISED:
            continue
        counted = True
        difference = max((_difference(left, right) for left, right in pairs), default=0.0)
        entry.same_outputs = difference == 0.0
        if difference:
            entry.status = "pass"
            entry.figures = {"difference": difference}
        before = largest.get(entry.rank, 0.0)
        if side := _not_finite(pairs):
            entry.status, entry.side = "suspect", side
            entry.reason = f"values that are not finite in {side}, none in {'A' if side == 'B' else 'B'}"
        elif difference > LEAST_DIFFERENCE and difference > GROWTH * before:
            entry.status = "suspect"
            entry.reason = (
                f"the statistics of its outputs differ by {difference:.2g} of their size, those of the calls before by "
                f"{before:.2g} at most"
            )
        largest[entry.rank] = max(before, difference)
    return counted


def _changed_shapes(entry: PairedCall) -> str:
    assert entry.a is not None and entry.b is not None
    for part in ("input", "output"):
        shapes = [_TENSOR.findall(str(call.row.get(part) or "")) for call in (entry.a, entry.b)]
        if shapes[0] != shapes[1]:
            texts = [", ".join(found) or "no tensor" for found in shapes]
            return f"its {part}s have other shapes or dtypes: {texts[0]} in A, {texts[1]} in B"
    return ""


def _statistics(entry: PairedCall) -> list[tuple[list[float], list[float]]] | None:
    """Pairs of [least, largest, mean, rms, number of non-finite values]; None where one run has none."""
    assert entry.a is not None and entry.b is not None
    mine, other = (call.row.get("stats") for call in (entry.a, entry.b))
    if not isinstance(mine, list) or not isinstance(other, list) or len(mine) != len(other):
        return None
    return [pair for pair in zip(mine, other, strict=True) if all(map(_is_five, pair))]


def _is_five(value: Any) -> bool:
    numbers = isinstance(value, list) and all(isinstance(item, int | float) for item in value)
    return numbers and len(value) == 5


def _difference(left: Sequence[float], right: Sequence[float]) -> float:
    size = max(left[3], right[3])
    if not size:
        return 0.0
    return max(abs(x - y) for x, y in zip(left[:4], right[:4], strict=True)) / size


def _not_finite(pairs: Sequence[tuple[list[float], list[float]]]) -> str:
    """The side that alone has values which are not finite."""
    lost = [sum(pair[side][4] for pair in pairs) for side in (0, 1)]
    return "A" if lost[0] and not lost[1] else "B" if lost[1] and not lost[0] else ""
