"""Cases and where they come from.

A source divides its cases into groups. `groups` is called once, in the process that the user started, and must be cheap.
`cases` is called in a worker process, which builds the cases of one group one after the other and runs each before it asks
for the next. The same group must give the same cases in the same order every time, because `source:group:number` names a case
for good and reruns it alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dicore.conformance.results import CaseResult, Status

__all__ = ["Case", "CaseSource", "DecidedCase", "case_id", "split_case_id"]


@dataclass(frozen=True, slots=True)
class Case:
    """One call of one function. Suites add what they need to make the call."""

    id: str
    """`source:group:number`"""
    function: str
    dtype: str
    """The dtype the case is about, for filters and the matrix of the report."""
    label: str = ""
    """What is special about it: a layout, a range of values, a module of a model."""

    @property
    def outcome(self) -> tuple[Status, str] | None:
        """Status and reason of a case that is not run; None of one that is."""
        return None

    def result(self, status: Status, reason: str = "") -> CaseResult:
        """What became of it."""
        return CaseResult(self.id, self.function, self.dtype, self.label, status, reason)


@dataclass(frozen=True, slots=True)
class DecidedCase(Case):
    """A candidate that cannot run, and why. Its function may be unknown (an empty text)."""

    reason: str = ""
    status: Status = "skipped"

    @property
    def outcome(self) -> tuple[Status, str] | None:
        return self.status, self.reason


@runtime_checkable
class CaseSource(Protocol):
    """Cases of one kind. It is made in the main process and sent (pickled) to the workers.

    Where a case cannot be built, `cases` raises; if its iterator can be asked again afterwards (a generator cannot), the run
    goes on behind it.
    """

    name: str

    def groups(self, functions: frozenset[str] | None) -> list[str]:
        """The units of work that hold cases of these functions (None: of all); no case is built."""
        ...

    def cases(self, group: str) -> Iterator[Case]:
        """The cases of a group, always the same ones in the same order."""
        ...


def case_id(source: str, group: str, number: int) -> str:
    """The name of a case for good."""
    return f"{source}:{group}:{number}"


def split_case_id(identity: str) -> tuple[str, str, int]:
    """`source:group:number` -> its parts (a group may contain colons); ValueError if it is no such name."""
    source, _, rest = identity.partition(":")
    group, _, number = rest.rpartition(":")
    if not source or not group or not number.isdigit():
        raise ValueError(f"{identity!r} is not the id of a case, which is source:group:number")
    return source, group, int(number)
