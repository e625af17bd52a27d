"""The words of the sweep: what is run, and how it can end. Plain data that travels between processes."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from typing import Any

_CAUSES = 20  # of one pair in the JSON file


class Sweep(enum.StrEnum):
    """The three questions asked of an operator."""

    FORWARD = "forward"
    GRADIENT = "gradient"
    REFUSE = "refuse"


class State(enum.StrEnum):
    """How a pair ends: one of the first three, unless ``expected.toml`` knows the failure."""

    PASS = "pass"
    FAIL = "fail"  # the device answered, and the answer is not the CPU's
    ERROR = "error"  # no answer: an exception the CPU does not raise, a crash, a timeout, nothing compared
    HARNESS = "harness"  # an artefact of the sweep itself
    REFUSAL = "refusal"  # the device refuses, and is right to
    GAP = "gap"  # a known shortcoming of the device

    @property
    def unexpected(self) -> bool:
        return self in (State.FAIL, State.ERROR)


@dataclass(frozen=True, order=True)
class Pair:
    """One operator with one dtype (its name without ``torch.``) in one sweep."""

    sweep: Sweep
    op: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.sweep}:{self.op}:{self.dtype}"


@dataclass(frozen=True)
class Problem:
    """One sample that did not agree."""

    state: State
    message: str
    detail: str = ""  # traceback, or the end of a crashed worker's log


@dataclass
class Outcome:
    """What became of a pair. Without a problem it passes; an error outweighs a wrong answer."""

    pair: Pair
    samples: int = 0
    seconds: float = 0.0
    problems: list[Problem] = field(default_factory=list)
    restrided: int = 0  # samples with equal values in another memory layout: information, not a failure
    worker_is_spent: bool = False  # the device no longer answers in that process
    known: State | None = None  # kind and reason from expected.toml
    reason: str = ""

    @property
    def worst(self) -> Problem | None:
        return max(self.problems, key=lambda problem: problem.state is State.ERROR, default=None)

    @property
    def state(self) -> State:
        worst = self.worst
        return self.known or (worst.state if worst else State.PASS)

    @property
    def message(self) -> str:
        worst = self.worst
        return worst.message if worst else ""

    def as_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {**asdict(self.pair), "state": self.state, "samples": self.samples}
        row |= {"failing": len(self.problems), "seconds": round(self.seconds, 4), "restrided": self.restrided}
        if self.worst:
            row |= {"message": self.worst.message, "detail": self.worst.detail}
            row["causes"] = [problem.message for problem in self.problems[:_CAUSES]]
        return row | ({"reason": self.reason} if self.reason else {})


@dataclass(frozen=True)
class Options:
    """How a pair is run; the same for all pairs of a sweep."""

    device: str = "dipu"
    max_samples: int | None = None
    variants: bool = False
    bit_equal_rng: bool | None = None  # None: measured in the worker
    op_db: str = "torch.testing._internal.common_methods_invocations:op_db"
    undefined_values: frozenset[str] = frozenset()  # operators whose numbers mean nothing
    host_arguments: frozenset[str] = frozenset()  # operators that want all but the first argument on the CPU


@dataclass(frozen=True)
class Selection:
    """Which pairs are run."""

    sweeps: tuple[Sweep, ...] = (Sweep.FORWARD, Sweep.GRADIENT, Sweep.REFUSE)
    ops: str | None = None  # full-match pattern
    dtypes: tuple[str, ...] | None = None
    one_dtype: bool = False  # float32 where the operator has it, else its first dtype


@dataclass
class WorkerFacts:
    """What a worker found out when it started."""

    torch_version: str
    bit_equal_rng: bool
    vendor: dict[str, Any] = field(default_factory=dict)
