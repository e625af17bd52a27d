"""Where cases come from: the contract between a source of cases and the runner.

A source divides its cases into groups. `groups` is called once, in the process that the user started, and must be cheap.
`cases` is called in a worker process, which builds the cases of one group one after the other and runs each before it asks
for the next; the same group must give the same cases in the same order every time, because `source:group:number` names a case
for good and reruns it alone.

A source has one more attribute if it needs it: `problem() -> str | None` says why it has no cases here and what to do
(something is not installed). A candidate that is no case, but that the user shall hear of, is a `SkippedCase`. Where a case
cannot be built, `cases` raises; if its iterator can be asked again afterwards (a generator cannot), the run goes on behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from diopi.conformance.case import Case


@dataclass(frozen=True, slots=True)
class SkippedCase(Case):
    """A candidate that cannot run, and why; it is reported as skipped. Its function may be unknown (an empty text)."""

    reason: str = ""


@runtime_checkable
class Source(Protocol):
    """Cases of one kind. It is made in the main process and sent (pickled) to the workers."""

    name: str

    def groups(self, functions: frozenset[str] | None) -> list[str]:
        """The units of work that hold cases of these functions (None: of all); cheap, no case is built."""
        ...

    def cases(self, group: str) -> Iterator[Case]:
        """The cases of a group, always the same ones in the same order."""
        ...


def case_id(source: str, group: str, number: int) -> str:
    """The name of a case for good."""
    return f"{source}:{group}:{number}"


def parted(identity: str) -> tuple[str, str, int]:
    """`source:group:number` -> its parts (a group may contain colons); ValueError if it is no such name."""
    source, _, rest = identity.partition(":")
    group, _, number = rest.rpartition(":")
    if not source or not group or not number.isdigit():
        raise ValueError(f"{identity!r} is not the id of a case; it looks like own:diopiAdd:12")
    return source, group, int(number)
