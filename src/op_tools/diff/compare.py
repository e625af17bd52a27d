"""Compares two runs by their captures: pairs the calls, judges them, finds the first that is wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from op_tools.captured.load import Item, find_items
from op_tools.diff.judging import judge_call
from op_tools.diff.pairing import PairedCall, pair_up
from op_tools.diff.report import Report
from op_tools.diff.sequence import RecordedCall, Sequences, bytes_described, of_captures, of_log
from op_tools.runs import NOTHING, BadInput, Run, open_run

__all__ = ["compare_captures", "open_either"]

_JUDGE = "op_tools.diff.judging:judge_call"
_PARTS = ("input", "output", "grad_inputs", "grad_outputs")
_STATUS = {"fail": "wrong"}
_RANKED = ("wrong", "not judged", "lower_precision", "pass", "same")
_NO_CAPTURE: dict[str, Any] = {"status": "not judged", "reason": "it has no capture", "lost": True}
Payloads = Sequence[tuple[dict[str, Any], int]]


def open_either(path: Path) -> tuple[Run | None, Sequences]:
    """A run and its captured calls (none where it has no captures); also of a bare tree of captures. Raises BadInput."""
    try:
        run = open_run(path)
    except BadInput as error:
        if error.code != NOTHING or not path.is_dir() or not find_items(path):
            raise
        return None, of_captures(path)
    found = of_log(run, "capture") if run.has("capture") else Sequences()
    if not found.count and run.captures is not None:
        found = of_captures(run.captures)
    return run, found


def compare_captures(
    paths: tuple[Path, Path],
    a: Sequences,
    b: Sequences,
    *,
    workers: int = 0,
    ray: str | None = None,
    allow: Sequence[str] = (),
    only_first: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Judge every call of both runs; with `only_first` no further than the first wrong one."""
    notes = [f"{name}: {note}" for name, found in (("A", a), ("B", b)) for note in found.notes]
    entries = pair_up(a, b, notes)
    report = Report(*paths, mode="captures", entries=entries, notes=notes, unread=a.unread + b.unread)
    entries.sort(key=lambda entry: entry.order)
    payloads = [(_payload(entry, allow), _weight(entry) if ray else 1) for entry in entries]
    waiting, first_wrong = set(range(len(entries))), len(entries)
    # Closed at once when the first wrong call is found: workers must not go on with what nobody waits for.
    with contextlib.closing(_results(payloads, workers, ray, paths)) as results:
        for index, result in results:
            _fill_in(entries[index], result)
            waiting.discard(index)
            judged = len(entries) - len(waiting)
            if entries[index].status == "wrong":
                first_wrong = min(first_wrong, index)
            if progress is not None:
                progress(judged, len(entries))
            # Results come in any order: none before it may be waited for.
            found_wrong = only_first and first_wrong < len(entries)
            if found_wrong and first_wrong < min(waiting, default=len(entries)):
                notes.append(f"judged up to the first wrong call: {judged} of {len(entries)} calls.")
                break
    notes += _about_lost(entries)
    return report


def _payload(entry: PairedCall, allow: Sequence[str]) -> dict[str, Any]:
    call = entry.call
    return {
        "name": call.name,
        "gradients": call.is_gradient,
        "a": _folder(entry.a),
        "b": _folder(entry.b),
        "allow": list(allow),
    }


def _folder(call: RecordedCall | None) -> list[str] | None:
    return None if call is None or call.folder is None else [str(call.folder.absolute()), call.prefix]


def _weight(entry: PairedCall) -> int:
    """Bytes of an item: of its files, and of the tensors of its input, which may lie elsewhere."""
    total = 1
    for call in (entry.a, entry.b):
        if call is not None and call.folder is not None:
            item = Item(call.folder, call.prefix)
            total += bytes_described(item)
            for part in _PARTS:
                with contextlib.suppress(OSError):
                    total += item.file(part).stat().st_size
    return total


def _results(
    payloads: Payloads, workers: int, ray: str | None, paths: Sequence[Path]
) -> Generator[tuple[int, dict[str, Any]]]:
    if workers == 0 and ray is None:
        for index, (payload, _) in enumerate(payloads):
            yield index, judge_call(payload)
        return
    from dicore.executors import ExecutorError, run_payloads

    try:
        yield from run_payloads(
            _JUDGE, payloads, workers=workers, ray=ray, needs=[str(path.absolute()) for path in paths]
        )
    except ExecutorError as error:
        raise BadInput(str(error), 2 if ray is not None else 3) from error


def _fill_in(entry: PairedCall, result: dict[str, Any]) -> None:
    if "error" in result:
        entry.reason, entry.is_lost = str(result["error"]), True
        return
    entry.same_inputs, entry.same_outputs = result["same_inputs"], result["same_outputs"]
    entry.random = result["random"]
    calls = {"A": entry.a, "B": entry.b}
    sides = {name: result[name.lower()] or _NO_CAPTURE for name, call in calls.items() if call is not None}
    statuses = {name: _STATUS.get(side["status"], side["status"]) for name, side in sides.items()}
    # The worst side speaks for the pair, and one that was not judged before one that is right.
    worst = min(reversed(sides), key=lambda name: _RANKED.index(statuses[name]))
    entry.status = statuses[worst]
    at_fault = [name for name in sides if statuses[name] == entry.status]
    if entry.status in ("wrong", "lower_precision"):
        entry.side = at_fault[0] if len(at_fault) == 1 else "both"
    entry.reason = sides[worst]["reason"]
    entry.figures = {key: value for key, value in sides[worst].items() if key not in _NO_CAPTURE}
    if entry.status == "not judged":
        # What only one of the runs cannot be asked about is a gap in it, whatever the reason.
        entry.is_lost = any(side["lost"] for side in sides.values()) or len(at_fault) < len(sides)
        if len(at_fault) < len(sides):
            entry.reason = f"in {worst}: {entry.reason}"


def _about_lost(entries: Sequence[PairedCall]) -> list[str]:
    """What is to be said of calls that could not be judged though they should have been."""
    lost = [entry for entry in entries if entry.is_lost]
    if not lost:
        return []
    return [
        f"calls that could not be judged in both runs: {len(lost)}. Whether they are right is not known. The first is "
        f"{lost[0].call.name} (step {lost[0].call.step}): {lost[0].reason}"
    ]
