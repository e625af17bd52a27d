"""What can be wrong with a capture on disk. Every message says what was wrong, what was expected and what to do."""

from __future__ import annotations

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
