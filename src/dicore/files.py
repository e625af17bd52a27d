"""Files that are complete or not there at all: written under a temporary name beside the target, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replaced", "write_bytes", "write_text"]


@contextmanager
def replaced(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to, in a folder that is made if it is missing.

    It takes the place of `path` when the block ends, and is removed when the block raises. The process id in its name keeps
    two processes that write the same file from meeting in one temporary.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # of an earlier process with this id
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
