"""Files that are complete or not there at all: written under a temporary name beside the target, then renamed. Lines of TOML."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replaced", "toml_lines", "write_bytes", "write_text"]


@contextmanager
def replaced(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to, in a folder that is made if it is missing.

    It takes the place of `path` when the block ends, and is removed when the block raises. Its name is random: two processes
    that write the same file have two, in containers that share a folder too, where their ids may be the same.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}_{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text; a lone surrogate (a file name that is no UTF-8) is written as `?`."""
    write_bytes(path, text.encode("utf-8", "replace"))


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a whole file. What is there and is no file, such as `/dev/stdout` or a pipe, is written to and not replaced."""
    if Path(path).exists() and not Path(path).is_file():
        Path(path).write_bytes(data)
        return
    with replaced(path) as temporary:
        temporary.write_bytes(data)


def toml_lines(text: str) -> dict[str, int]:
    """The line of every table and key, such as `opinfo.known[3].op`: Python's reader does not say it, and a person wants it."""
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}  # of the tables that are lists
    table = inside = ""  # the latter: the quotes of a text over several lines
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r'\s*(\[\[?)([\w.\-" ]+)\]\]?\s*(?:#.*)?$', line)
        key = re.match(r'\s*"?([\w\-]+)"?\s*=', line)
        if header and not inside:
            name = re.sub('[" ]', "", header[2])
            if header[1] == "[[":
                counts[name] = counts.get(name, -1) + 1
            table = walked = ""
            for part in name.split("."):
                walked = f"{walked}.{part}".lstrip(".")
                table = f"{table}.{part}".lstrip(".") + (f"[{counts[walked]}]" if walked in counts else "")
            lines.setdefault(table, number)
        elif key and not inside:
            lines.setdefault(f"{table}.{key[1]}".lstrip("."), number)
        for quotes in re.findall(r'"""|\'\'\'', line):
            inside = "" if quotes == inside else inside or quotes
    return lines
