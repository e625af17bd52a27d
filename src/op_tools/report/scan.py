"""Reads the logs of one rank, or of one process, into a summary: every row once, few of them kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from op_tools.report.captures import Captures
from op_tools.report.facts import RowFacts, facts_of
from op_tools.report.rows import (
    ATTENTION,
    EVENTS,
    JUDGED,
    LABELS,
    LISTED,
    RIGHT,
    WRONG,
    finite,
    section_of,
    split_name,
    verdict_of,
    with_whole_numbers,
)
from op_tools.report.summary import (
    LARGEST,
    MOST_FIRST,
    NO_RANK,
    BestRows,
    KeptRow,
    LogLine,
    MemorySeries,
    OperatorStats,
    RankStats,
    RunSummary,
    SiteTimes,
    StepStats,
    bucket_of,
    earliest_of,
)
from op_tools.storage.csv_reader import CsvReader, header_in_name
from op_tools.storage.errors import CaptureError
from op_tools.storage.log_reader import LogReader, decoded

__all__ = ["KINDS_OF_MEMORY", "MOST_POINTS", "LogFile", "scan"]

KINDS_OF_MEMORY = ("host_rss_bytes", "device_allocated_bytes", "device_reserved_bytes")
MOST_POINTS = 400
# Rows that one rank has kept of an operator and verdict: few, so that other ranks are seen too.
_MOST_OF_ONE = 3
# Milliseconds beyond this are no time of a call.
_LONGEST = 1e9
_DEVICE = re.compile(r"@([a-z_]+(?::\d+)?)")
# Texts of arguments that are looked at for devices; the first ones name all that a log uses.
_MOST_LOOKED_AT = 2000
_ORIGIN = ("pid", "rank", "started", "world_size")

TakeRow = Callable[[str, dict[str, Any]], int]
"""Takes a row of a tool into the table: its index there, or -1 where it is only counted."""


class LogFile(NamedTuple):
    """A log of a run, and where the captures of that run are."""

    tool: str
    path: str
    captures: str | None


class _Named:
    """The rows of one rank that have one name."""

    __slots__ = ("durations", "error", "first_step", "largest", "sites", "verdicts")

    def __init__(self) -> None:
        self.verdicts: dict[str, int] = {}
        self.error = self.largest = -1.0
        self.first_step: int | None = None
        self.durations: dict[int, int] = {}
        self.sites: dict[str, list[int]] = {}

    def add_errors(self, error: Any, largest: Any) -> None:
        """A NaN is no error that could be compared."""
        if type(error) is float and error > self.error:
            self.error = error
        if type(largest) is float and largest > self.largest:
            self.largest = largest


class _RankRows:
    """The rows of one rank in a log."""

    __slots__ = ("compared", "last_step", "names")

    def __init__(self) -> None:
        self.names: dict[str, _Named] = {}
        self.compared: dict[int, int] = {}  # by step
        self.last_step = -1


def scan(logs: Sequence[LogFile], take_row: TakeRow | None = None) -> RunSummary:
    """The summary of the logs of one process, or of the processes of one rank. What cannot be read is said in it.

    `take_row` is given every row but those about memory, with its operator, value, verdict and capture.
    """
    return _Scan(logs, take_row).run()


class _Scan:
    def __init__(self, logs: Sequence[LogFile], take_row: TakeRow | None) -> None:
        self.logs = logs
        self.take_row = take_row
        self.summary = RunSummary()
        captured = [Path(log.path) for log in logs if log.tool == "capture"]
        roots = {log.captures: Path(log.captures) if log.captures else None for log in logs}
        self.captures = {name: Captures(root, captured) for name, root in roots.items()}
        self.times: dict[tuple[int, Any], dict[int, int]] = {}  # of each process by step
        self.series: dict[tuple[int, int, str], list[tuple[float, int]]] = {}

    def run(self) -> RunSummary:
        for log in self.logs:
            self._read(log)
        for steps in self.times.values():
            for step, nanoseconds in steps.items():
                stats = self.summary.steps.setdefault(step, StepStats())
                stats.nanoseconds = max(stats.nanoseconds, nanoseconds)
        for best in self.summary.best.values():
            best.merge(BestRows(), _MOST_OF_ONE, _MOST_OF_ONE)
        self._close_memory()
        summary = RunSummary()
        summary.merge(self.summary)  # cuts and sorts as every other merge does
        return summary

    # -- a log ----------------------------------------------------------------------------------------------

    def _read(self, log: LogFile) -> None:
        path = Path(log.path)
        try:
            with CsvReader(path) if path.suffix == ".csv" else LogReader(path) as reader:
                header = with_whole_numbers(reader.header)
                self._note(log.tool, path.name, header)
                if section_of(log.tool) == "memory":
                    rows = self._read_memory(reader, header)
                else:
                    rows = self._read_rows(log, reader, header)
                damage = (reader.dropped_bytes, reader.damaged_bytes)
                self._log_line(log.tool, path.name, header, rows, damage, "")
        except (CaptureError, OSError) as error:
            self._log_line(log.tool, path.name, {}, 0, (0, 0), str(error))

    def _log_line(
        self,
        tool: str,
        file: str,
        header: Mapping[str, Any],
        rows: int,
        damage: tuple[int, int],
        problem: str,
    ) -> None:
        rank = header.get("rank")
        self.summary.logs.append(
            LogLine(
                tool, _number(rank) if rank is not None or not problem else _number(header_in_name(file).get("rank")),
                str(header.get("started") or ""), file, str(header.get("host") or ""), header.get("pid") or 0, rows,
                *damage, problem, header.get("world_size") or 1,
            )
        )  # fmt: skip

    def _note(self, tool: str, file: str, header: Mapping[str, Any]) -> None:
        if header.get("torch"):
            self.summary.torch.append(str(header["torch"]))
        if isinstance(header.get("settings"), dict):
            settings = {str(name): value for name, value in header["settings"].items()}
            rank = _number(header.get("rank"))
            if tool not in self.summary.settings or (rank, file) < self.summary.settings[tool][:2]:
                self.summary.settings[tool] = (rank, file, settings)

    # -- rows -----------------------------------------------------------------------------------------------

    def _read_rows(self, log: LogFile, reader: LogReader | CsvReader, header: dict[str, Any]) -> int:
        """The loop that every row goes through."""
        section = section_of(log.tool)
        timed, judged, table = section == "time", section in JUDGED, self.take_row is not None
        own_rank, own_pid = _number(header.get("rank")), header.get("pid")
        by_rank: dict[int, _RankRows] = {}
        texts: set[str] = set()
        order = -1
        for order, (payload, facts) in enumerate(facts_of(reader)):
            rank = facts.rank if type(facts.rank) is int else own_rank
            mine = by_rank.get(rank)
            if mine is None:
                mine = by_rank[rank] = _RankRows()
            if type(facts.step) is int and facts.step > mine.last_step:
                mine.last_step = facts.step
            verdict, name = facts.verdict, facts.name
            if type(verdict) is not str or not verdict:
                verdict = verdict_of(log.tool, msgspec.structs.asdict(facts))
            named = mine.names.get(name) if type(name) is str else None
            if named is None:
                named = mine.names.setdefault(str(name or ""), _Named())
            number = facts.stands_for
            named.verdicts[verdict] = named.verdicts.get(verdict, 0) + number
            if judged:
                named.add_errors(facts.error_over_bound, facts.max_abs_diff)
                if type(facts.step) is int and (verdict in RIGHT or verdict in WRONG):
                    mine.compared[facts.step] = mine.compared.get(facts.step, 0) + number
            elif timed:
                self._add_time(named, facts, (rank, facts.pid if type(facts.pid) is int else own_pid))
            if type(facts.input) is str and facts.input not in texts and len(texts) < _MOST_LOOKED_AT:
                texts.add(facts.input)
            if table or verdict in ATTENTION:
                self._keep(log, header, payload, verdict, order, named)
        for text in texts:
            self.summary.devices += _DEVICE.findall(text)
        self._fold(log.tool, section, by_rank)
        return order + 1

    def _add_time(self, named: _Named, facts: RowFacts, process: tuple[int, Any]) -> None:
        forward, backward = _nanoseconds(facts.forward_elasped), _nanoseconds(facts.backward_elasped)
        both = forward + backward
        site = named.sites.get(facts.call_site) if type(facts.call_site) is str else None
        if site is None:
            site = named.sites.setdefault(str(facts.call_site or ""), [0, 0, 0])
        site[0] += 1
        site[1] += forward
        site[2] += backward
        bucket = bucket_of(both)
        named.durations[bucket] = named.durations.get(bucket, 0) + 1
        if type(facts.step) is int:
            steps = self.times.get(process)
            if steps is None:
                steps = self.times[process] = {}
            steps[facts.step] = min(steps.get(facts.step, 0) + both, LARGEST)

    def _keep(
        self,
        log: LogFile,
        header: Mapping[str, Any],
        payload: bytes | dict[str, Any],
        verdict: str,
        order: int,
        named: _Named,
    ) -> None:
        """A row that goes into the table or needs attention."""
        row = {key: header.get(key) for key in _ORIGIN}
        found = decoded(payload) if isinstance(payload, bytes) else payload
        row |= {str(key): value for key, value in (found or {}).items()}
        with_whole_numbers(row)
        row["operator"], row["value"] = split_name(row.get("name"))
        row["verdict"] = verdict
        row["capture"] = self.captures[log.captures].path(row)
        index = self.take_row(log.tool, row) if self.take_row is not None else -1
        if verdict not in ATTENTION:
            return
        step = row.get("step")
        if isinstance(step, int):
            events = self.summary.steps.setdefault(int(step), StepStats()).events
            event = EVENTS.get(verdict, "fail")
            events[event] = events.get(event, 0) + 1
            if verdict in WRONG:
                named.first_step = step if named.first_step is None else min(step, named.first_step)
        score = finite(row.get("error_over_bound"))
        if row.get("error_over_bound") == float("inf"):
            score = float("inf")
        kept = KeptRow(log.tool, _when(log, row, order), score or 0.0, row, index)
        best = self.summary.best.setdefault(f"{log.tool} {verdict} {row['operator']}", BestRows())
        best.earliest.append(kept)
        best.worst.append(kept)
        if len(best.earliest) >= 10 * _MOST_OF_ONE:
            best.merge(BestRows(), _MOST_OF_ONE, _MOST_OF_ONE)
        if verdict in LISTED:
            first = self.summary.first.setdefault(log.tool, [])
            first.append(kept)
            if len(first) >= 10 * MOST_FIRST:
                self.summary.first[log.tool] = earliest_of(first, MOST_FIRST)

    def _fold(self, tool: str, section: str, by_rank: Mapping[int, _RankRows]) -> None:
        """Add the names of a log to the operators of their ranks."""
        counts = self.summary.verdicts.setdefault(tool, {})
        for rank, mine in by_rank.items():
            stats = self.summary.ranks.setdefault(rank, RankStats())
            for step, compared in mine.compared.items():
                self.summary.steps.setdefault(step, StepStats()).compared += compared
            if mine.last_step >= 0:
                stats.last_step = max(mine.last_step, stats.last_step or 0)
            for name, named in mine.names.items():
                for verdict, number in named.verdicts.items():
                    counts[verdict] = counts.get(verdict, 0) + number
                operator, _ = split_name(name)
                found = _stats_of(section, named)
                if found is not None:
                    stats.operators.setdefault(operator, OperatorStats()).merge(found)
                for site, (calls, forward, backward) in named.sites.items():
                    times = self.summary.sites.setdefault(operator, {}).setdefault(site, SiteTimes())
                    times.merge(SiteTimes(calls, min(forward, LARGEST), min(backward, LARGEST)))

    # -- memory ---------------------------------------------------------------------------------------------

    def _read_memory(self, reader: LogReader | CsvReader, header: Mapping[str, Any]) -> int:
        count = 0
        for row in map(with_whole_numbers, reader.rows()):
            count += 1
            moment = finite(row.get("time_s"))
            rank, pid = _number(row.get("rank", header.get("rank"))), row.get("pid", header.get("pid")) or 0
            for kind in KINDS_OF_MEMORY:
                value = finite(row.get(kind))
                if moment is not None and value is not None and 0 <= value < LARGEST:
                    self.series.setdefault((rank, pid, kind), []).append((moment, int(value)))
        return count

    def _close_memory(self) -> None:
        """Of neighbours the highest stays, so that no peak is lost."""
        summary = self.summary
        for (rank, pid, kind), points in self.series.items():
            points.sort()
            width = -(-len(points) // MOST_POINTS)
            kept = [
                max(points[at : at + width], key=lambda point: point[1])
                for at in range(0, len(points), width)
            ]
            start = points[0][0]
            summary.memory_start = start if summary.memory_start is None else min(start, summary.memory_start)
            peaks = summary.ranks.setdefault(rank, RankStats()).peaks
            peaks[kind] = max(peaks.get(kind, 0), *(value for _, value in kept))
            if kind == "host_rss_bytes" or any(value for _, value in kept):
                summary.memory.append(MemorySeries(rank, pid, kind, kept))


def _stats_of(section: str, named: _Named) -> OperatorStats | None:
    count = named.verdicts.get
    wrong = sum(count(verdict, 0) for verdict in WRONG)
    if section in JUDGED:
        compared = wrong + count("suspect", 0) + sum(count(verdict, 0) for verdict in RIGHT)
        if not compared:
            return None
        return OperatorStats(
            compared, wrong, sum(count(label, 0) for label in LABELS), count("suspect", 0), 0, named.first_step,
            named.error if named.error >= 0 else None, named.largest if named.largest >= 0 else None,
        )  # fmt: skip
    if section == "overflow":
        return OperatorStats(births=wrong, first_step=named.first_step) if wrong else None
    if section == "time":
        sums = [min(sum(site[part] for site in named.sites.values()), LARGEST) for part in range(3)]
        return OperatorStats(
            calls=sums[0], forward_ns=sums[1], backward_ns=sums[2], durations=named.durations
        )
    return None


def _nanoseconds(milliseconds: Any) -> int:
    """Whole, so that sums do not depend on their order; 0 for what is no time."""
    if type(milliseconds) is float and 0 <= milliseconds < _LONGEST:
        return int(milliseconds * 1e6 + 0.5)
    return milliseconds * 1_000_000 if type(milliseconds) is int and 0 <= milliseconds < _LONGEST else 0


def _when(log: LogFile, row: Mapping[str, Any], order: int) -> tuple[bool, str, int, int, int, int, str]:
    """When a row came about. Ranks run the same steps side by side; processes of their own run one after another.

    A log is in the order of what happened. Numbers of calls are not: gradients go by that of the forward call.
    """
    suspect, file = row["verdict"] == "suspect", Path(log.path).name
    rank, pid = _number(row.get("rank")), _number(row.get("pid"))
    if log.tool == "diff":  # one log for all ranks and both runs, in the order of its own answer
        return suspect, "", 0, order, rank, pid, file
    alone = (row.get("world_size") or 1) == 1
    step = row.get("step")
    at = int(step) if isinstance(step, int) else 1 << 62
    return suspect, str(row.get("started")) if alone else "", at, order, rank, pid, file


def _number(value: Any) -> int:
    return int(value) if isinstance(value, int) else NO_RANK
