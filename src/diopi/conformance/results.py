"""What is known about a case after it ran: small, plain data that travels between processes and into files."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["pass", "fail", "unsupported", "skipped"]
STATUSES: tuple[Status, ...] = ("pass", "fail", "unsupported", "skipped")


@dataclass(slots=True)
class Worst:
    """One element that is off."""

    index: list[int]
    expected: str
    got: str
    error: str = ""


@dataclass(slots=True)
class WrongTensor:
    """A result that is wrong: which, by how much, and where most."""

    name: str
    shape: list[int]
    dtype: str
    reason: str
    worst: list[Worst] = field(default_factory=list)


@dataclass(slots=True)
class Result:
    """The outcome of one case."""

    id: str
    function: str
    dtype: str
    label: str
    status: Status
    reason: str = ""
    error_over_bound: float | None = None
    """The largest error beside what correct arithmetic could give; above 1 is a failure, None where nothing was measured."""
    seconds: float = 0.0
    arguments: list[str] = field(default_factory=list)
    """One line for each argument; only of failures."""
    wrong: list[WrongTensor] = field(default_factory=list)

    @property
    def source(self) -> str:
        return self.id.partition(":")[0]

    def plain(self) -> dict[str, Any]:
        """For a file; what is empty is left out."""
        full = asdict(self)
        kept = {key: value for key, value in full.items() if value not in (None, "", [])}
        kept["seconds"] = round(self.seconds, 5)
        return kept


def from_plain(data: dict[str, Any]) -> Result:
    """What `plain` gave."""
    wrong = [
        WrongTensor(**{**w, "worst": [Worst(**e) for e in w.get("worst", [])]}) for w in data.get("wrong", [])
    ]
    known = {key: value for key, value in data.items() if key in Result.__dataclass_fields__}
    return Result(**{"function": "", "dtype": "", "label": "", **known, "wrong": wrong})
