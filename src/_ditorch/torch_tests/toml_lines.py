"""Where in a TOML file a key stands: Python's reader does not say, and a person wants the line."""

from __future__ import annotations

import re

__all__ = ["line_of"]

_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.\-\"]+)\s*\]\]?\s*(?:#.*)?$")
_STEP = re.compile(r"([\w\-]+)|\[(\d+)\]")


def line_of(text: str, key: str) -> int | None:
    """The line of ``opinfo.known[3].op``; of the table it belongs to where the key itself is not found."""
    steps = [found[1] or int(found[2]) for found in _STEP.finditer(key)]
    best: tuple[int, int] | None = None  # how much of the path was found, and where
    for path, number in _places(text):
        if path == steps[: len(path)] and (best is None or len(path) > best[0]):
            best = len(path), number
    return best[1] if best else None


def _places(text: str) -> list[tuple[list[str | int], int]]:
    """Every header and every key with its path, in order."""
    found: list[tuple[list[str | int], int]] = []
    table: list[str | int] = []
    counts: dict[str, int] = {}
    inside = ""  # the quotes of a text over several lines
    for number, line in enumerate(text.splitlines(), 1):
        if not inside:
            header = _HEADER.match(line)
            if header:
                table = _table(header[2], header[1] == "[[", counts)
                found.append((table, number))
            else:
                assignment = re.match(r"\s*([\w\-]+)\s*=", line)
                if assignment:
                    found.append(([*table, assignment[1]], number))
        inside = _open_quotes(line, inside)
    return found


def _table(name: str, is_list: bool, counts: dict[str, int]) -> list[str | int]:
    if is_list:
        counts[name] = counts.get(name, -1) + 1
    path: list[str | int] = []
    walked = ""
    for part in name.split("."):
        walked = f"{walked}.{part}" if walked else part
        path.append(part)
        if walked in counts:
            path.append(counts[walked])
    return path


def _open_quotes(line: str, inside: str) -> str:
    for quotes in re.findall(r'"""|\'\'\'', line):
        if not inside:
            inside = quotes
        elif inside == quotes:
            inside = ""
    return inside
