"""From what a person types to one captured call: a folder, a number, an operator's name, or `first`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from dicore.console import counted
from dicore.suggestions import did_you_mean
from op_tools.captured.load import Item, find_items
from op_tools.describe import printable
from op_tools.reproduce.certainty import certainty, is_finding
from op_tools.runs import BadInput, Run, open_run
from op_tools.storage import CaptureError, load

__all__ = ["FIRST", "HOW_TO_CAPTURE", "find_call", "surest_calls"]

FIRST = "first"
HOW_TO_CAPTURE = (
    "Capture the call first: `with op_tools.OpCapture(level='aten'): train_one_step()`, or "
    "`ditorch run script.py --tool capture`. OpAutoCompare saves the calls it finds wrong by itself."
)
_MOST_LISTED = 10
_COMPARED = "autocompare"

IsWrong = Callable[[Item], bool]


def find_call(identity: str, run: str | Path, is_wrong: IsWrong) -> Item:
    """The call that is meant. `is_wrong` decides where a name stands for its first wrong call. Raises BadInput."""
    path = Path(identity)
    if identity == FIRST:
        return next(surest_calls(run, is_wrong))
    if not identity.isdigit() and path.exists():
        return _only(find_items(path), f"{path}", _site_in)
    calls = _Calls.of(run)
    if identity.isdigit():
        return _numbered(calls, int(identity))
    below = [item for item in calls.items if item.folder.is_relative_to(calls.captures / identity)]
    if identity in calls.names():
        return _first_wrong(below or calls.named(identity), is_wrong, f" of {identity}")
    if below:
        return _only(below, identity, calls.site)
    hint = did_you_mean(identity, (*calls.names(), FIRST), most=3, cutoff=0.5)
    raise BadInput(
        f"{identity!r} is no folder, and no number or operator that was captured in {run}.{hint} Expected the folder of "
        f"a captured call, its number (the column forward_id), an operator's name such as {calls.names()[0]}, or `first`."
    )


def surest_calls(run: str | Path, is_wrong: IsWrong) -> Iterator[Item]:
    """Calls that comparisons found wrong and that were captured, the surest first, then those that only have a label.

    Without one, the first captured call that is wrong. Raises BadInput where there is none.
    """
    _check_something_is_wrong(open_run(run))
    calls = _Calls.of(run)
    found = list(_compared_wrong(calls))
    if not found:
        yield _first_wrong(calls.items, is_wrong, "")
    yield from found


def _check_something_is_wrong(run: Run) -> None:
    """Where nothing was captured because nothing was found, that is the answer."""
    if run.captures is not None or not run.has("autocompare"):
        return
    judged = 0
    for row in run.rows("autocompare"):
        if is_finding(row, "autocompare"):
            return
        judged += row.get("verdict") in ("same", "pass")
    if judged:
        raise BadInput(
            f"nothing is wrong: OpAutoCompare judged {counted(judged, 'value', ',')} in {run.path} and found none wrong, so no "
            f"call was saved. {HOW_TO_CAPTURE}",
            1,
        )


class _Calls:
    """The captured calls of a run, and what its log says of them."""

    @classmethod
    def of(cls, run: str | Path) -> _Calls:
        """Raises BadInput where nothing was captured."""
        opened = open_run(run)
        if opened.captures is None:
            raise BadInput(f"nothing was captured in {run}. {HOW_TO_CAPTURE}")
        calls = cls(opened, opened.captures)
        if not calls.items:
            raise BadInput(f"{opened.captures} holds no captured call. {HOW_TO_CAPTURE}")
        return calls

    def __init__(self, run: Run, captures: Path) -> None:
        self.run, self.captures = run, captures
        self.rows: dict[str, dict[str, Any]] = {}
        for row in run.rows("capture"):
            self.rows.setdefault(str(row.get("folder")), row)
        # As they were made, where a log tells; others behind.
        order = {folder: index for index, folder in enumerate(self.rows)}
        items = find_items(captures)
        self.items = sorted(items, key=lambda item: order.get(self.folder(item), len(order)))

    def holds(self, path: Path) -> bool:
        """Whether a folder is one of this run's captures."""
        try:
            return path.resolve().is_relative_to(self.captures.resolve())
        except (OSError, ValueError):  # a log from elsewhere may call anything a folder
            return False

    def folder(self, item: Item) -> str:
        return item.folder.relative_to(self.captures).as_posix()

    def name(self, item: Item) -> str:
        return str(self.rows.get(self.folder(item), {}).get("name") or self.folder(item).partition("/")[0])

    def names(self) -> list[str]:
        return list(dict.fromkeys(self.name(item) for item in self.items))

    def named(self, name: str) -> list[Item]:
        return [item for item in self.items if self.name(item) == name]

    def site(self, item: Item) -> str:
        return str(self.rows.get(self.folder(item), {}).get("call_site") or "") or _site_in(item)

    def with_number(self, number: int) -> list[Item]:
        """Calls whose folder or row has the number; of captures of two tools, those that were found wrong."""
        found: dict[str, tuple[list[Item], list[Item]]] = {}
        for item in self.items:
            parts = self.folder(item).split("/")
            if str(number) in parts[2:4] or self.rows.get("/".join(parts), {}).get("forward_id") == number:
                # The same call, captured by two tools, has one operator, process and number.
                captured, compared = found.setdefault("/".join(parts[:2]), ([], []))
                (compared if _COMPARED in parts else captured).append(item)
        return [item for captured, compared in found.values() for item in compared or captured]


def _site_in(item: Item) -> str:
    try:
        return str(load(item.file("input"))["__op_tools__"].get("call_site") or "")
    except CaptureError:
        return ""


def _only(items: list[Item], what: str, site: Callable[[Item], str]) -> Item:
    if not items:
        raise BadInput(f"{what} holds no captured call (input.pth). {HOW_TO_CAPTURE}")
    if len(items) == 1:
        return items[0]
    lines = [f"{what} stands for {len(items)} captured calls. Say which one:"]
    for item in items[:_MOST_LISTED]:
        lines.append(f"  {item.label}")
        if call_site := site(item):
            lines.append(f"      {printable(call_site)[:150]}")
    if len(items) > _MOST_LISTED:
        lines.append(f"  and {len(items) - _MOST_LISTED} more")
    raise BadInput("\n".join(lines))


def _numbered(calls: _Calls, number: int) -> Item:
    found = calls.with_number(number)
    if not found:
        raise BadInput(
            f"no captured call in {calls.run.path} has the number {number}. Numbers are in the column forward_id of its "
            f"logs and in the names of the folders under {calls.captures}."
        )
    return _only(found, f"number {number}", calls.site)


def _compared_wrong(calls: _Calls) -> list[Item]:
    """What comparisons found: of `op-tools diff` before OpAutoCompare, of this run before the other run of a diff."""
    here: dict[Path, Item] = {}
    elsewhere: dict[Path, Item] = {}
    for tool in ("diff", "autocompare"):
        rows = [row for row in _newest(calls.run, tool).rows(tool) if is_finding(row, tool)]
        # What is as sure stays in the order in which it happened.
        for row in sorted(rows, key=certainty, reverse=True):
            item = _captured(calls, row)
            if item is not None:
                (here if calls.holds(item.folder) else elsewhere).setdefault(item.folder, item)
    return [*here.values(), *elsewhere.values()]


def _newest(run: Run, tool: str) -> Run:
    """Every `op-tools diff` leaves a log, and what an earlier one said of other captures is past."""
    logs = run.logs.get(tool, ())
    return replace(run, logs={tool: logs[-1:]}) if tool == "diff" else run


def _captured(calls: _Calls, row: dict[str, Any]) -> Item | None:
    """The capture that a row of a comparison is about."""
    # A row of `op-tools diff` names the captures of both runs, and which side is wrong.
    folder_a, folder_b = (str(row.get(side) or "") for side in ("folder_a", "folder_b"))
    folder, other = (folder_a, folder_b) if row.get("side") == "A" else (folder_b, folder_a)
    candidates = [Path(folder)] if folder else []
    of_other_run = bool(folder and other) and calls.holds(Path(other))
    if folder and not of_other_run:
        # A run that was moved or copied: its log still names the folders of then.
        candidates.insert(0, calls.captures / folder.rpartition(f"{calls.captures.name}/")[2])
    for path in candidates:
        found = find_items(path) if path.is_dir() else []
        if len(found) == 1:
            return found[0]
    number, name = row.get("forward_id"), str(row.get("name") or "").partition(" ")[0]
    if of_other_run or not isinstance(number, int):
        return None
    items = [item for item in calls.with_number(number) if calls.name(item) == name]
    part = "grad_inputs" if f"{row.get('name')} ".startswith(f"{name} grad") else "output"
    return next((item for item in items if item.file(part).exists()), items[0] if items else None)


def _first_wrong(items: Iterable[Item], is_wrong: IsWrong, what: str) -> Item:
    one_side = [item for item in items if item.folder.name != "cpu"]
    for item in one_side:
        if is_wrong(item):
            return item
    calls = "1 captured call" if len(one_side) == 1 else f"{len(one_side)} captured calls"
    raise BadInput(
        f"nothing is wrong: {calls}{what} gave right values, as far as they can be judged. Give the folder of a call and "
        f"--force to write a file anyway.",
        1,
    )
