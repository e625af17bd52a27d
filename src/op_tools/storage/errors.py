"""What can be wrong with a capture on disk. Every message says what was wrong, what was expected and what to do."""

from __future__ import annotations

import contextlib
import errno
import sys
from pathlib import Path
from typing import Any


def shown(value: Any) -> str:
    """A value of a file for a message. Only what has a short text is written out: that of a tree can be endless."""
    if type(value) is int:
        return str(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
    if type(value) is str:
        return repr(value[:40])
    if value is None or type(value) in (bool, float):
        return repr(value)
    return f"a value of type {type(value).__name__}"


def to_standard_error(message: str) -> None:
    """Where problems are told that nobody listens to."""
    print(f"op_tools: {message}", file=sys.stderr)


def remedy_for(error: OSError) -> str:
    """What a person can do about an error of the disk."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "Free some space, or capture less (max_bytes, max_calls_per_signature, steps)"
    return "Check that the folder can be written to; OP_TOOLS_RESULTS names another"


_told: set[tuple[int | None, int]] = set()


def tell_disk_problem(error: OSError, path: str | Path) -> None:
    """Once for each disk and kind of error: seven tools on one full disk have one thing to say, and not each row again."""
    key = (error.errno, _disk_of(Path(path)))
    if key in _told:
        return
    _told.add(key)
    to_standard_error(
        f"results can no longer be written: {error.strerror or error} ({path}). The program goes on, and the tools "
        f"still sum up what they found. {remedy_for(error)}."
    )


def _disk_of(path: Path) -> int:
    """The device of a path, or of the first folder above it that is there."""
    for place in (path, *path.absolute().parents):
        with contextlib.suppress(OSError):
            return place.stat().st_dev
    return 0


class CaptureError(Exception):
    """A capture cannot be read. `path` is the file; the text is meant for the person who asked for it."""

    def __init__(self, path: str | Path, problem: str, expected: str, remedy: str) -> None:
        self.path = str(path)
        self.problem = problem
        self.expected = expected
        self.remedy = remedy
        super().__init__(f"{path}: {problem}; expected {expected}. {remedy}")


class CaptureMissing(CaptureError):
    """The file, or a blob that it refers to, is not there."""


class CaptureDamaged(CaptureError):
    """The file is truncated or its bytes contradict each other: a broken disk, a copy cut short."""


class CaptureRefused(CaptureError):
    """The file asks for something that a capture never needs: code, foreign paths, absurd sizes."""


class CaptureUnsupported(CaptureError):
    """The file is sound, but of a newer format or of another kind."""
