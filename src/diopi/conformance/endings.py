"""How a process that ran cases came to its end, in words for a report."""

from __future__ import annotations

import signal
from pathlib import Path

__all__ = ["ending", "last_words"]


def ending(code: int | None) -> str:
    """By its exit code."""
    if code is not None and code < 0:
        try:
            name = f" {signal.Signals(-code).name}"
        except ValueError:
            name = ""
        return f"crashed (signal {-code}{name})"
    return f"ended the process (exit code {code})"


def last_words(log: Path) -> str:
    """The last line that the process printed: an abort says why."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f": {lines[-1][:200]}" if lines else ""
