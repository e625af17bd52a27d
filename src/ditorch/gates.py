"""Gates: what a run must not show if it is to count as a success."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ditorch.run_tools import BadRequest, guess, tool_named

if TYPE_CHECKING:
    from op_tools.tool import Tool

__all__ = ["Gate", "Watch", "parse_gate"]

_SHOWN = 5
FAILED, NOTHING_COMPARED = 1, 5


@dataclasses.dataclass(frozen=True)
class Gate:
    """A tool and, for memory, the limit."""

    tool: str
    limit: int = 0

    def findings(self, rows: Iterable[dict[str, Any]]) -> list[str]:
        """What speaks against the run, one text each, in the order it happened."""
        return _READERS[self.tool](rows, self.limit)


def parse_gate(text: str) -> Gate:
    """`autocompare`, `overflow` or `memory=8G`. Raises BadRequest."""
    word, equals, value = text.partition("=")
    known = {name: tool for tool in _READERS for name in (tool, tool_named(tool).section)}
    if word not in known:
        raise BadRequest(
            f"--gate {text}: there is no such gate.{guess(word, known)} The gates are: autocompare, overflow, memory=SIZE."
        )
    if known[word] != "memory":
        if equals:
            raise BadRequest(f"--gate {text}: the gate {word} takes no value.")
        return Gate(known[word])
    from op_tools.settings import size

    try:
        return Gate("memory", size(value))
    except ValueError as error:
        raise BadRequest(f"--gate {text}: expected memory=SIZE, such as memory=8G ({error})") from error


def _wrong(rows: Iterable[dict[str, Any]], _limit: int) -> list[str]:
    return [
        f"{row.get('name')} is wrong{_backward_of(row)}: {row.get('reason')}{_place(row)}"
        for row in rows
        if row.get("verdict") == "fail"
    ]


def _born(rows: Iterable[dict[str, Any]], _limit: int) -> list[str]:
    return [
        f"{row.get('kind')} born in {row.get('name')}{_backward_of(row)}{_place(row)}"
        for row in rows
        if row.get("status") == "born"
    ]


def _too_large(rows: Iterable[dict[str, Any]], limit: int) -> list[str]:
    from op_tools.memory_plot import size_text

    highest: dict[Any, dict[str, Any]] = {}
    for row in rows:
        known = highest.get(row.get("pid"))
        if known is None or int(row["host_peak_bytes"]) > int(known["host_peak_bytes"]):
            highest[row.get("pid")] = row
    return [
        f"process {pid} had {size_text(int(row['host_peak_bytes']))} of host memory at its peak; the limit is {size_text(limit)}"
        for pid, row in highest.items()
        if int(row["host_peak_bytes"]) > limit
    ]


def _backward_of(row: dict[str, Any]) -> str:
    return f" (backward of {row['forward_name']})" if row.get("forward_name") else ""


def _place(row: dict[str, Any]) -> str:
    return f", step {row.get('step')}\n      at {row['call_site']}" if row.get("call_site") else ""


_READERS: dict[str, Callable[[Iterable[dict[str, Any]], int], list[str]]] = {
    "autocompare": _wrong,
    "overflow": _born,
    "memory": _too_large,
}


class Watch:
    """The gates of one run: what was there before it does not count, nor what other ranks write."""

    def __init__(self, gates: Sequence[Gate], tools: Sequence[Tool]) -> None:
        self.gates = gates
        sections = {gate.tool: tool_named(gate.tool).section for gate in gates}
        self._tools = {
            gate.tool: next(tool for tool in tools if tool.section == sections[gate.tool]) for gate in gates
        }
        self._before = {gate.tool: set(_logs(self._tools[gate.tool])) for gate in gates}

    def verdict(self) -> tuple[int, list[str]]:
        """The exit code of the gates, and the lines that say why."""
        code, lines = 0, []
        for gate in self.gates:
            rows = list(self._rows(gate))
            found = gate.findings(rows)
            if found:
                code = FAILED
                lines.append(f"gate {gate.tool} failed: {len(found)} finding{'s' if len(found) > 1 else ''}")
                lines += [f"    {text}" for text in found[:_SHOWN]]
                if len(found) > _SHOWN:
                    lines.append(f"    and {len(found) - _SHOWN} more")
            elif gate.tool == "autocompare" and not any(
                row.get("verdict") not in ("", None, "skipped") for row in rows
            ):
                code = code or NOTHING_COMPARED
                lines.append(
                    "gate autocompare: nothing was compared, so nothing is known. Check that the program computes on the "
                    "device, and the settings list, disable_list and device."
                )
        return code, lines

    def _rows(self, gate: Gate) -> Iterable[dict[str, Any]]:
        from op_tools.storage import read_log

        tool = self._tools[gate.tool]
        for path in _logs(tool):
            if path not in self._before[gate.tool]:
                contents = read_log(path)
                if _is_mine(contents.header):
                    yield from ({"pid": contents.header.get("pid"), **row} for row in contents.rows)


def _logs(tool: Tool) -> list[Path]:
    from op_tools.storage.log import find_logs

    folder = os.path.join(tool.settings.results, tool.result_folder)
    return find_logs(folder, tool.result_file) if os.path.isdir(folder) else []


def _is_mine(header: dict[str, Any]) -> bool:
    """In a job of several ranks each answers for itself: another may be writing still."""
    if os.environ.get("WORLD_SIZE", "1") in ("", "1"):
        return True
    return str(header.get("rank", 0)) == os.environ.get("RANK", "0")
