"""What is known about a case after it ran, and about a run: plain data that travels between processes and into files."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = ["STATUSES", "CaseResult", "RunReport", "Status", "WrongElement", "WrongTensor"]

Status = Literal["pass", "fail", "unsupported", "skipped"]
STATUSES: tuple[Status, ...] = ("pass", "fail", "unsupported", "skipped")


@dataclass(slots=True)
class WrongElement:
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
    worst: list[WrongElement] = field(default_factory=list)


@dataclass(slots=True)
class CaseResult:
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

    @property
    def title(self) -> str:
        """Id, dtype and label, as the console and the files name a case."""
        return " ".join(part for part in (self.id, self.dtype, self.label) if part)

    def set(self, status: Status, reason: str) -> None:
        """The outcome."""
        self.status, self.reason = status, reason

    def as_plain(self) -> dict[str, Any]:
        """For a file; what is empty is left out."""
        full = asdict(self)
        kept = {key: value for key, value in full.items() if value not in (None, "", [])}
        kept["seconds"] = round(self.seconds, 5)
        return kept

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> CaseResult:
        """What `as_plain` gave."""
        wrong = [
            WrongTensor(**{**w, "worst": [WrongElement(**e) for e in w.get("worst", [])]})
            for w in data.get("wrong", [])
        ]
        fields = {key: value for key, value in data.items() if key in cls.__dataclass_fields__}
        return cls(**{"function": "", "dtype": "", "label": "", **fields, "wrong": wrong})


@dataclass
class RunReport:
    """All that a run found."""

    subject: str
    """What was checked: the path of a library, or a package and its device."""
    vendor: str = ""
    version: str = ""
    started: str = ""
    seconds: float = 0.0
    seed: int = 0
    results: list[CaseResult] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What could not be run at all."""
    not_covered: list[str] = field(default_factory=list)
    interrupted: bool = False
    whole: bool = False
    """Every function was asked for, so one without a case is a failure of the suite."""
    environment: dict[str, Any] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)
    """As the user would type it again to run one of its cases, without the seed and the id."""
    suite: str = ""
    """Whose functions were checked; files say it."""

    @property
    def made_by(self) -> str:
        """Vendor and version of what was checked, as far as it says them."""
        return f"{self.vendor} {self.version}".strip()

    def counts(self) -> Counter[Status]:
        return Counter(result.status for result in self.results)

    def failures(self) -> list[CaseResult]:
        return [result for result in self.results if result.status == "fail"]

    def functions(self) -> set[str]:
        """The functions that cases were of."""
        return {result.function for result in self.results if result.function}

    @property
    def exit_code(self) -> int:
        """0 ok, 1 failures, 5 nothing ran, 130 interrupted."""
        counts = self.counts()
        if self.interrupted:
            return 130
        if counts["fail"] or (self.whole and self.not_covered):
            return 1
        return 0 if counts["pass"] else 5
