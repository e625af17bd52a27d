"""The calls of a run in the order they were made, per rank, from a tool's log or from the captures alone."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from op_tools.captured.load import (
    Item,
    call_number,
    described_values,
    find_items,
    operator_name,
    whole_number,
)
from op_tools.runs import BadInput, Run, rows_of_log
from op_tools.storage import CaptureError, load
from op_tools.storage.log_reader import read_header

__all__ = ["RankedLog", "RecordedCall", "Sequences", "bytes_described", "of_captures", "of_log", "shapes_of"]

_SITE = re.compile(r"(?P<file>.*?):(?P<line>\d+) (?P<rest>.*)", re.DOTALL)
_ITEM_BYTES = 4


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of a run: its row, and where its capture lies."""

    row: Mapping[str, Any]
    folder: Path | None = None
    prefix: str = ""
    is_gradient: bool = False  # the gradients of a call that has a row of its own

    @property
    def name(self) -> str:
        return str(self.row.get("name") or "")

    @property
    def step(self) -> int | None:
        step = self.row.get("step")
        return step if isinstance(step, int) else None

    @property
    def number(self) -> int | None:
        number = self.row.get("forward_id")
        return number if isinstance(number, int) else None

    @property
    def thread(self) -> str:
        return str(self.row.get("thread"))

    @property
    def phase(self) -> str:
        return str(self.row.get("phase") or "forward")

    @property
    def level(self) -> str:
        return str(self.row.get("level") or "api")

    @property
    def location(self) -> str:
        """The function and the text of the source line: neither folder nor line number, which differ between versions."""
        return _location(str(self.row.get("call_site") or ""))

    @property
    def module(self) -> str:
        return str(self.row.get("module") or "")

    def key(self) -> tuple[str, ...]:
        """What two calls of two runs have in common when they are the same call."""
        return (_neutral(self.name), self.location, self.module, self._moment, self.level)

    def weak_key(self) -> tuple[str, ...]:
        """The same where the program's text has changed."""
        return (_neutral(self.name), self._moment, self.level)

    @property
    def _moment(self) -> str:
        """A call made inside backward is not the gradient of one, though both have the phase backward."""
        return "gradients" if self.is_gradient else self.phase


@dataclass
class Sequences:
    """The calls of a run by rank, and what is to be said about how they were found."""

    by_rank: dict[int, list[RecordedCall]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unread: int = 0  # captures of which nothing can be said, not even which call they are of

    @property
    def count(self) -> int:
        return sum(map(len, self.by_rank.values()))

    @property
    def levels(self) -> set[str]:
        return {call.level for calls in self.by_rank.values() for call in calls}


@functools.lru_cache(maxsize=65536)
def _location(site: str) -> str:
    found = _SITE.match(site.partition("\n")[0])
    return found["rest"] if found else ""


@functools.lru_cache(maxsize=8192)
def _neutral(name: str) -> str:
    """`x.cuda()` here is `x.to(device)` there."""
    return "torch.Tensor.to" if name in _to_a_device() else name


@functools.cache
def _to_a_device() -> frozenset[str]:
    import torch

    return frozenset({"torch.Tensor.cuda", f"torch.Tensor.{torch._C._get_privateuse1_backend_name()}"})


def of_log(run: Run, tool: str) -> Sequences:
    """The calls in the log of a tool."""
    captures = run.captures if tool == "capture" else None
    rows = [row for row in run.rows(tool) if row.get("name")]
    found = Sequences()
    for rank, mine in _by_rank(rows, found.notes):
        found.by_rank[rank] = list(_recorded(mine, captures))
    return found


class RankedLog:
    """The calls in the log of a tool, one rank at a time: those of many ranks do not fit into memory together."""

    def __init__(self, run: Run, tool: str) -> None:
        """Raises BadInput where no log can be read."""
        self.notes: list[str] = []
        self.unread = 0
        self._logs: dict[int, list[Path]] = {}
        for path in run.logs.get(tool, ()):
            try:
                ranks = _ranks_in(path)
            except BadInput as error:
                self.notes.append(f"{error} Its calls are not compared.")
                self.unread += 1
                continue
            for rank in ranks:
                self._logs.setdefault(rank, []).append(path)
        if self.unread and not self._logs:
            raise BadInput(self.notes[0])

    @property
    def ranks(self) -> set[int]:
        """The ranks that may have calls: a log can be without rows."""
        return set(self._logs)

    def calls(self, rank: int) -> list[RecordedCall]:
        """The calls of one rank, in their order. Raises BadInput."""
        rows = (row for path in self._logs[rank] for row in rows_of_log(path))
        mine = [row for row in rows if row.get("name") and _rank_of(row) == rank]
        return [call for _, chosen in _by_rank(mine, self.notes) for call in _recorded(chosen, None)]


def _ranks_in(path: Path) -> set[int]:
    """The ranks whose rows a log has; who began it before there were ranks may have become any."""
    try:
        header = read_header(path)
    except (CaptureError, OSError):
        header = {}  # who reads the rows says what is wrong
    rank, size = header.get("rank"), header.get("world_size")
    if isinstance(rank, int) and isinstance(size, int) and size > 1:
        return {rank}
    return {_rank_of(row) for row in rows_of_log(path)}


def _rank_of(row: Mapping[str, Any]) -> int:
    rank = row.get("rank")
    return rank if isinstance(rank, int) else 0


def _recorded(rows: Iterable[dict[str, Any]], captures: Path | None) -> Iterator[RecordedCall]:
    """The gradients of a call at API level are a second row with the same folder."""
    seen: set[str] = set()
    for row in rows:
        if captures is None or not row.get("folder"):
            yield RecordedCall(row)
            continue
        folder = str(row["folder"])
        is_gradient = folder in seen and row.get("phase") == "backward" and row.get("level") != "aten"
        seen.add(folder)
        yield RecordedCall(row, captures / folder, is_gradient=is_gradient)


def _by_rank(rows: Iterable[dict[str, Any]], notes: list[str]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """One process per rank: where there are more, the one with the most rows, of those the newest."""
    ranks: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        ranks.setdefault(_rank_of(row), []).append(row)
    for rank, rows_here in sorted(ranks.items()):
        mine = rows_here
        counts = Counter(row.get("pid") for row in mine)
        if len(counts) > 1:
            newest = {row.get("pid"): str(row.get("started")) for row in mine}
            chosen = max(counts, key=lambda pid: (counts[pid], newest[pid]))
            others = ", ".join(str(pid) for pid in counts if pid != chosen)
            notes.append(
                f"rank {rank} has rows of {len(counts)} processes; process {chosen} is compared, not {others}. "
                f"Give every run a results folder of its own."
            )
            mine = [row for row in mine if row.get("pid") == chosen]
        yield rank, mine


def of_captures(folder: Path) -> Sequences:
    """The calls captured below a folder where no log tells their order: by number, backward after forward."""
    found = Sequences()
    for item in find_items(folder):
        row = _row_of(item)
        if row is None:
            found.unread += 1
            continue
        calls = found.by_rank.setdefault(row["rank"], [])
        calls.append(RecordedCall(row, item.folder, item.prefix))
        if row["level"] == "api" and item.file("grad_inputs").exists():
            calls.append(
                RecordedCall({**row, "phase": "backward"}, item.folder, item.prefix, is_gradient=True)
            )
    for calls in found.by_rank.values():
        calls.sort(key=_order)
    if found.unread:
        notes = "capture was" if found.unread == 1 else "captures were"
        found.notes.append(f"{found.unread} {notes} left out: the input cannot be read.")
    if found.by_rank:
        found.notes.append(f"{folder} has no log: its calls are ordered by their numbers.")
    return found


def _order(call: RecordedCall) -> tuple[int, bool, int, int]:
    number, order = int(call.row["forward_id"]), int(call.row["order"])
    sign = -1 if call.is_gradient else 1
    return call.step or 0, call.is_gradient, sign * number, sign * order


def _row_of(item: Item) -> dict[str, Any] | None:
    try:
        data = load(item.file("input"))
    except (CaptureError, OSError):
        return None
    header = data.get("__op_tools__") or {}
    extra = header.get("extra")
    extra = extra if isinstance(extra, dict) else {}
    name = operator_name(item, header)
    return {
        "forward_id": call_number(item, header) or 0,
        # Calls at ATen level go by the number of the call they are part of.
        "order": whole_number(header.get("order")) or 0,
        "name": name,
        "call_site": header.get("call_site") or "",
        "module": extra.get("module") or "",
        "step": whole_number(header.get("step")) or 0,
        "rank": whole_number(header.get("rank")) or 0,
        "world_size": whole_number(header.get("world_size")) or 1,
        "level": extra.get("level") or ("aten" if str(name).startswith("aten.") else "api"),
        "phase": "forward",
    }


def shapes_of(call: RecordedCall) -> str:
    """Shapes and dtypes of what went in, as far as the run tells without reading tensors; else empty."""
    said = call.row.get("input")
    if isinstance(said, str):
        return re.sub(r"@[\w:]+", "", said)  # the device is what may differ
    if call.folder is None:
        return ""
    return _described_shapes(Item(call.folder, call.prefix).file("input"))


@functools.lru_cache(maxsize=65536)
def _described_shapes(path: Path) -> str:
    values = described_values(path)
    return repr([_shape(value) if isinstance(value, dict) else value for value in values]) if values else ""


def bytes_described(item: Item) -> int:
    """About how many bytes the tensors of a call's input have."""
    tensors = [value for value in described_values(item.file("input")) if isinstance(value, dict)]
    return sum(_ITEM_BYTES * math.prod(_shape(tensor)[1]) for tensor in tensors)


def _shape(described: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
    """The dtype and the shape of a described tensor."""
    return str(described["dtype"]), tuple(size for size in described["shape"] if isinstance(size, int))
