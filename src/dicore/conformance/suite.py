"""What a suite supplies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dicore.conformance.cases import Case, CaseSource
from dicore.conformance.results import CaseResult

__all__ = ["Suite", "SuiteError", "VendorVersion"]


class SuiteError(RuntimeError):
    """What is to be checked cannot be used at all."""


@dataclass(frozen=True)
class VendorVersion:
    """Who made what is checked."""

    vendor: str = ""
    version: str = ""


class Suite(ABC):
    """Cases, and one function that runs a case.

    A suite is made in the process that the user started, which asks its sources for groups. Its pickled copies in the worker
    processes call `prepare` once and then `run` for each case.
    """

    name: ClassVar[str]
    """Such as `diopi`; reports and their files say it."""
    example_case: ClassVar[str]
    """An id, for messages about ids that are none."""
    preload: ClassVar[tuple[str, ...]] = ()
    """Modules that workers are forked with; nothing that starts a thread or a device when it is imported."""
    environment: ClassVar[Mapping[str, str | None]] = {}
    """Variables of the workers beside those of the main process; None takes one away."""
    max_crashes: ClassVar[int | None] = None
    """A group that ended so many workers is not run any further; None: every crash costs its case only.
    The main process then lists the cases of the group, so listing them must be cheap."""

    def __init__(self, subject: str, sources: Sequence[CaseSource]) -> None:
        self.subject = subject
        self.sources = list(sources)

    def source(self, name: str) -> CaseSource:
        """The source of that name."""
        return next(source for source in self.sources if source.name == name)

    def functions(self) -> frozenset[str]:
        """All functions of the interface: what a run without filters must cover if `covers_all`."""
        return frozenset()

    @property
    def covers_all(self) -> bool:
        """Whether the sources together have cases of every function."""
        return True

    def versions(self) -> dict[str, Any]:
        """Versions of libraries that results may depend on, for the reports."""
        return {}

    @abstractmethod
    def prepare(self) -> VendorVersion:
        """Called in each worker before its first case. An error ends the run (the first worker) or the worker."""

    @abstractmethod
    def run(self, case: Case) -> CaseResult:
        """Runs and judges a case. What it raises is a failure of the case, and names the suite as the culprit."""

    def worker_usable(self, result: CaseResult) -> bool:
        """Whether the worker that gave this result can run the next case; another takes over if not."""
        return True

    def close(self) -> None:  # noqa: B027  (most suites have nothing to close)
        """Called in each worker after its last case; not in one that crashed."""
