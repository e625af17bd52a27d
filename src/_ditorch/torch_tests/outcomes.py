"""What is run and how it can end: plain data that travels between processes."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from dicore.workers import Lost

__all__ = [
    "CaseOutcome",
    "FileFacts",
    "OpInfoCheck",
    "OpInfoOptions",
    "Pair",
    "PairOutcome",
    "PairSelection",
    "Problem",
    "SourceSetup",
    "StartError",
    "State",
    "ToleranceRule",
    "WorkerFacts",
    "state_of",
]

# -- pairs of the operator database ----------------------------------------------------------------------------


class OpInfoCheck(enum.StrEnum):
    """The questions asked of an operator."""

    FORWARD = "forward"
    GRADIENT = "gradient"
    OUT = "out"
    INPLACE = "inplace"
    NONCONTIGUOUS = "noncontiguous"
    DTYPES = "dtypes"
    ERRORS = "errors"


class State(enum.StrEnum):
    """How a case ends. The last three are failures that the device's file lists, each with a reason."""

    PASSED = "passed"
    FAILED = "failed"  # an answer, and it is wrong
    ERROR = "error"  # no answer: an exception, nothing compared, a file that cannot be imported
    TIMEOUT = "timeout"  # ended after its time limit
    CRASH = "crash"  # its process died
    SKIPPED = "skipped"  # not run, with a reason
    ARTEFACT = "artefact"  # the test asks for something that no device could answer
    REFUSAL = "refusal"  # the device refuses, and is right to
    GAP = "gap"  # a known shortcoming of the device

    @property
    def unexpected(self) -> bool:
        return self in _UNEXPECTED

    @property
    def listed(self) -> bool:
        return self in (State.ARTEFACT, State.REFUSAL, State.GAP)


def state_of(lost: Lost) -> State:
    """How a case ends whose worker gave no answer."""
    return {"crash": State.CRASH, "timeout": State.TIMEOUT}.get(lost.cause, State.ERROR)


class StartError(RuntimeError):
    """No worker could be prepared: nothing can be run."""


_UNEXPECTED = frozenset((State.FAILED, State.ERROR, State.TIMEOUT, State.CRASH))
_LOST = (State.TIMEOUT, State.CRASH)


@dataclass(frozen=True, order=True)
class Pair:
    """One operator with one dtype (its name without ``torch.``) under one check."""

    check: OpInfoCheck
    op: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.check}:{self.op}:{self.dtype}"


@dataclass(frozen=True)
class Problem:
    """One sample that did not agree."""

    state: State
    message: str
    detail: str = ""  # traceback, or the end of a crashed worker's log


@dataclass
class PairOutcome:
    """What became of a pair. Without a problem it passes; no answer outweighs a wrong one."""

    pair: Pair
    samples: int = 0
    seconds: float = 0.0
    problems: list[Problem] = field(default_factory=list)
    # Numbers of samples: with equal values in another memory layout, which is information and no failure; where the device
    # agrees with the upcast reference and the CPU does not; where neither does, and op_tools' verdict finds the device's
    # error one of correct arithmetic; which both sides refuse.
    restrided: int = 0
    wider: int = 0
    verdict: int = 0
    refused: int = 0
    listed_as: State | None = None  # kind and reason from the device's file
    reason: str = ""

    @property
    def worst(self) -> Problem | None:
        return max(self.problems, key=lambda problem: problem.state is not State.FAILED, default=None)

    @property
    def state(self) -> State:
        worst = self.worst
        return self.listed_as or (worst.state if worst else State.PASSED)

    @property
    def message(self) -> str:
        worst = self.worst
        return worst.message if worst else ""

    @property
    def lost(self) -> bool:
        return any(problem.state in _LOST for problem in self.problems)


@dataclass(frozen=True)
class ToleranceRule:
    """A device's own bound, where torch's default for the dtype is too narrow for it."""

    op: str  # full-match pattern
    dtypes: tuple[str, ...] | None
    checks: tuple[OpInfoCheck, ...] | None
    rtol: float
    atol: float


@dataclass(frozen=True)
class OpInfoOptions:
    """How a pair is run; the same for all pairs of a run."""

    device: str
    max_samples: int | None = None
    bit_equal_rng: bool | None = None  # None: measured in the worker
    op_db: str = "torch.testing._internal.common_methods_invocations:op_db"
    undefined_values: frozenset[str] = frozenset()  # operators whose numbers mean nothing
    host_arguments: frozenset[str] = frozenset()  # operators that want all but the first argument on the CPU
    tolerances: tuple[ToleranceRule, ...] = ()
    dtypes_of: str = "cpu"  # the device type whose dtypes in the database the device is held to
    device_dtypes: frozenset[str] | None = None  # the only ones that the device has; None: all
    torch_skips: bool = False  # a failure in a test that torch skips on this device type is torch's own

    def has_dtype(self, name: str) -> bool:
        return self.device_dtypes is None or name in self.device_dtypes


@dataclass(frozen=True)
class PairSelection:
    """Which pairs are run."""

    checks: tuple[OpInfoCheck, ...] = tuple(OpInfoCheck)
    ops: str | None = None  # full-match pattern
    dtypes: tuple[str, ...] | None = None
    one_dtype: bool = False  # float32 where the operator has it, else its first dtype


@dataclass
class WorkerFacts:
    """What a worker found out when it started."""

    torch_version: str
    bit_equal_rng: bool
    vendor: dict[str, Any] = field(default_factory=dict)


# -- cases of test files ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceSetup:
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
