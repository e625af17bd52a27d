"""Plain data about test files and their cases that travels between processes."""

from __future__ import annotations

from dataclasses import dataclass, field

from _ditorch.torch_tests.model import State

__all__ = ["CaseOutcome", "FileFacts", "Setup"]


@dataclass(frozen=True)
class Setup:
    """What every process needs to know."""

    device: str
    root: str  # the folder of the tests, on sys.path as torch's own runner has it
    seconds: float  # limit of one case
    every_class: bool  # also classes that are not made for a device


@dataclass
class FileFacts:
    """What importing a test file showed."""

    cases: list[str] = field(default_factory=list)  # Class.method, for the device under test
    others: int = 0  # cases of classes that are not made for a device
    error: str = ""  # why the file could not be imported; one line, then the traceback
    forks: bool = False  # each case gets a process of its own


@dataclass
class CaseOutcome:
    """What became of one case."""

    state: State
    seconds: float
    message: str = ""
    detail: str = ""
