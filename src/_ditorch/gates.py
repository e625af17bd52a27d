"""Gates: what a run must not show if it is to count as a success."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _ditorch.ranks import LaunchedRank
from _ditorch.run_tools import UsageError, offered, tool_named
from dicore.settings import size
from dicore.suggestions import did_you_mean

if TYPE_CHECKING:
    from op_tools.allowances import Allowances
    from op_tools.storage.log import Log
    from op_tools.tool import Tool

__all__ = ["Gate", "GateChecker", "gate_names", "parse_gate", "strict_gates"]

_SHOWN = 5
_PATIENCE = 10.0  # seconds
FAILED, NOTHING_KNOWN = 1, 5


@dataclasses.dataclass(frozen=True)
class Gate:
    """A tool that judges and, if it takes one, the limit."""

    tool: str
    limit: int = 0
    allowances: Allowances | None = (
        None  # of a strict gate: labels that none of them covers speak against the run too
    )

    def faults(self, rows: Iterable[dict[str, Any]]) -> list[str]:
        """What speaks against the run, one text each, in the order it happened."""
        tool = tool_named(self.tool)
        if self.allowances is None:
            return tool.faults(rows, self.limit)
        return [text for row in rows if (text := tool.fault(row) or self._label(row))]

    def _label(self, row: Mapping[str, Any]) -> str:
        from op_tools.tool import at_call_site, in_backward_of

        label = self.allowances.finding(row) if self.allowances is not None else ""
        if not label:
            return ""
        return f"{row.get('name')} is {label}{in_backward_of(row)}: {row.get('reason')}{at_call_site(row)}"

    def note(self, rows: Iterable[dict[str, Any]]) -> str:
        """What a gate that is passed does not look at."""
        if self.allowances is not None or not tool_named(self.tool).gives_labels:
            return ""
        from op_tools.verdict import is_label

        labels = Counter(str(row["verdict"]) for row in rows if is_label(str(row.get("verdict") or "")))
        told = ", ".join(f"{count} {label}" for label, count in labels.items())
        return f"passed, but values have a label ({told}); --strict fails on them" if told else ""


def gate_names() -> list[str]:
    """The gates as they are written: `autocompare`, `memory=SIZE`."""
    return [
        f"{tool.command_name}={tool.gate_value}" if tool.gate_value else tool.command_name
        for tool in offered()
        if tool.judges
    ]


def strict_gates(gates: Sequence[Gate], allow: Sequence[str], profiles: Sequence[str]) -> list[Gate]:
    """The same gates, of which those that know labels fail on what is not allowed. Raises UsageError."""
    from op_tools.allowances import Allowances, BadAllowance

    if not any(tool_named(gate.tool).gives_labels for gate in gates):
        names = " or ".join(f"--gate {tool.command_name}" for tool in offered() if tool.gives_labels)
        raise UsageError(
            f"--strict makes labels fail the gate of a tool that gives labels: it needs {names} beside it. If it is an option "
            "of the script, put -- before it."
        )
    try:
        allowances = Allowances.of(allow, profiles)
    except BadAllowance as error:
        raise UsageError(f"--allow, --profile: {error}.") from error
    return [
        dataclasses.replace(gate, allowances=allowances) if tool_named(gate.tool).gives_labels else gate
        for gate in gates
    ]


def parse_gate(text: str) -> Gate:
    """`autocompare`, `overflow` or `memory=8G`. Raises UsageError."""
    word, equals, value = text.partition("=")
    judging = {name: tool for tool in offered() if tool.judges for name in (tool.command_name, tool.section)}
    if word not in judging:
        raise UsageError(
            f"--gate {text}: there is no such gate.{did_you_mean(word, judging)} The gates are: {', '.join(gate_names())}."
        )
    tool = judging[word]
    if not tool.gate_value:
        if equals:
            raise UsageError(f"--gate {text}: the gate {word} takes no value.")
        return Gate(tool.command_name)
    try:
        return Gate(tool.command_name, size(value))
    except ValueError as error:
        raise UsageError(
            f"--gate {text}: expected {word}={tool.gate_value}, such as {word}=8G ({error})"
        ) from error


class GateChecker:
    """The gates of one run: what was there before it does not count, nor what other ranks write."""

    def __init__(self, gates: Sequence[Gate], tools: Sequence[Tool], launched: LaunchedRank) -> None:
        self.gates = gates
        self.launched = launched
        sections = {gate.tool: tool_named(gate.tool).section for gate in gates}
        self._tools = {
            gate.tool: next(tool for tool in tools if tool.section == sections[gate.tool]) for gate in gates
        }
        self._written: dict[str, Log] = {}
        self.hold_logs()
        # The tools have started: what they have written by now is of this run.
        own = {log.path for log in self._written.values()}
        self._before = {gate.tool: set(_logs(self._tools[gate.tool])) - own for gate in gates}

    @property
    def results(self) -> str:
        """The folder that the ranks share."""
        return str(self._tools[self.gates[0].tool].settings.results)

    def hold_logs(self) -> None:
        """Keep the logs of this process before the tools let go of them: they know what could not be written."""
        for name, tool in self._tools.items():
            log = tool.results.log if tool.results is not None else None
            if log is not None:
                self._written[name] = log

    def verdict(self) -> tuple[int, list[str]]:
        """The exit code of the gates, and the lines that say why."""
        code, lines = 0, []
        unfinished = _unfinished_children(_PATIENCE)
        for gate in self.gates:
            rows, problem = self._rows(gate)
            problem = problem or unfinished
            found = gate.faults(rows)
            if found:
                code = FAILED
                lines.append(f"gate {gate.tool} failed: {len(found)} finding{'s' if len(found) > 1 else ''}")
                lines += [f"    {text}" for text in _each_operator_first(found)[:_SHOWN]]
                if len(found) > _SHOWN:
                    lines.append(f"    and {len(found) - _SHOWN} more")
                if gate.allowances is not None and not tool_named(gate.tool).faults(rows, gate.limit):
                    lines.append(
                        "    no value is wrong; --allow OPERATOR[:ARITHMETIC] or --profile FILE allows labels"
                    )
            elif problem := problem or tool_named(gate.tool).inconclusive(rows):
                code = code or NOTHING_KNOWN
                lines.append(f"gate {gate.tool}: {problem}")
            elif note := gate.note(rows):
                lines.append(f"gate {gate.tool} {note}")
        return code, lines

    def _rows(self, gate: Gate) -> tuple[list[dict[str, Any]], str]:
        """What this run has written, and why that may not be all."""
        from op_tools.storage import CaptureError, read_log

        tool = self._tools[gate.tool]
        rows: list[dict[str, Any]] = []
        problems = [self._not_written(gate.tool)]
        new = [path for path in _logs(tool) if path not in self._before[gate.tool]]
        if not new:  # a process that the program has started may have had something to write
            problems.append(_unwritable(_folder(tool)))
        for path in new:
            try:
                contents = read_log(path)
            except (CaptureError, OSError) as error:
                problems.append(f"{path} cannot be read: {error}")
                continue
            if self._is_mine(contents.header):
                rows += ({"pid": contents.header.get("pid"), **row} for row in contents.rows)
                if contents.dropped_bytes:
                    problems.append(f"the end of {path} is lost")
        if (log := self._written.get(gate.tool)) is not None:
            rows += log.unwritten()  # found all the same
        problem = next(filter(None, problems), "")
        return (
            rows,
            problem and f"nothing is known, because {problem}. Check the results folder and the disk.",
        )

    def _not_written(self, name: str) -> str:
        log = self._written.get(name)
        if log is None or (log.complete and not log.problem):
            return ""
        return f"results could not be written: {log.problem}" if log.problem else "rows were lost"

    def _is_mine(self, header: dict[str, Any]) -> bool:
        """In a job of several ranks each answers for itself: another may be writing still.

        A process that calls itself a rank of some other job is none of the ranks that were launched with this one: it was
        started by one of them, and is better counted twice than not at all.
        """
        if self.launched.is_single or header.get("pid") == os.getpid():
            return True
        return (
            header.get("world_size") != self.launched.world_size or header.get("rank") == self.launched.rank
        )


def _each_operator_first(found: Sequence[str]) -> list[str]:
    """One finding of each operator, in the order they happened, before more of the same."""
    first: dict[str, str] = {}
    for text in found:
        first.setdefault(text.split(" ", 1)[0], text)
    return [*first.values(), *(text for text in found if first[text.split(" ", 1)[0]] is not text)]


def _unfinished_children(seconds: float) -> str:
    """Which processes of the program go on after it; Python waits for them too, but after us.

    Not without end: one may wait for what an exit handler of the program does.
    """
    import multiprocessing

    deadline = time.monotonic() + seconds
    children = [child for child in multiprocessing.active_children() if not child.daemon]
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
    alive = [str(child.pid) for child in children if child.is_alive()]
    return (
        f"nothing is known of process {', '.join(alive)}, which the program has started and which still runs. Join it."
        if alive
        else ""
    )


def _folder(tool: Tool) -> str:
    return os.path.join(tool.settings.results, tool.result_folder)


def _logs(tool: Tool) -> list[Path]:
    from op_tools.storage.log_reader import find_logs

    return find_logs(_folder(tool), tool.result_file) if os.path.isdir(_folder(tool)) else []


def _unwritable(folder: str) -> str:
    """Why nothing can be written to a folder; empty if something can."""
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
    except OSError as error:
        return f"results cannot be written to {folder}: {error.strerror or error}"
    with contextlib.suppress(OSError):  # leave no empty folder behind
        os.rmdir(folder)
    return ""
