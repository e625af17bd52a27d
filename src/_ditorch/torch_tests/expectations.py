"""The list of what is known not to pass, and the test that it is still true."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from _ditorch.torch_tests.device_file import DeviceFile, KnownCase, KnownPair
from _ditorch.torch_tests.outcomes import Pair, PairOutcome, Problem, State

__all__ = ["Expectations", "covers_case", "covers_pair"]

_GRAVITY = (State.REFUSAL, State.ARTEFACT, State.GAP)


@dataclass
class _Entry:
    """One known cause, and what it has met in this run."""

    entry: KnownPair | KnownCase
    met: int = 0
    passed: list[str] = field(default_factory=list)

    @property
    def kind(self) -> State:
        return State(self.entry.kind)

    def covers(self, subject: Pair | tuple[str, str]) -> bool:
        if isinstance(self.entry, KnownPair):
            return isinstance(subject, Pair) and covers_pair(self.entry, subject)
        return isinstance(subject, tuple) and covers_case(self.entry, *subject)

    def explains(self, problem: Problem) -> bool:
        """A wrong answer is never a refusal, and a crash is only what an entry calls a crash."""
        if self.kind is State.REFUSAL and problem.state is not State.ERROR:
            return False
        if problem.state in (State.CRASH, State.TIMEOUT) and not self.entry.match:
            return False
        return bool(re.search(self.entry.match, problem.message))

    def __str__(self) -> str:
        if isinstance(self.entry, KnownCase):
            return f"{self.entry.file}::{self.entry.case}"
        checks, dtypes = (
            ",".join(names) if names else "*" for names in (self.entry.checks, self.entry.dtypes)
        )
        return f"{checks}:{self.entry.op}:{dtypes}"


def covers_pair(entry: Any, pair: Pair) -> bool:
    """Whether an entry of the device's file is about a pair."""
    if entry.checks is not None and pair.check not in entry.checks:
        return False
    return (entry.dtypes is None or pair.dtype in entry.dtypes) and bool(re.fullmatch(entry.op, pair.op))


def covers_case(entry: Any, file: str, case: str) -> bool:
    """Whether an entry of the device's file is about a case of a test file."""
    return bool(re.fullmatch(entry.file, file) and re.fullmatch(entry.case, case))


class Expectations:
    """The entries that apply to one device and one version of torch."""

    def __init__(self, file: DeviceFile, torch_version: str) -> None:
        version = Version(Version(torch_version).base_version)
        entries: list[KnownPair | KnownCase] = [*file.opinfo.known, *file.source.known]
        self._entries = [_Entry(entry) for entry in entries if version in SpecifierSet(entry.torch)]

    def drop_for(self, features: Collection[str]) -> None:
        """Forget the entries about what the vendor's library, once loaded, turns out to have."""
        self._entries = [
            entry for entry in self._entries if getattr(entry.entry, "without", "") not in features
        ]

    def classify(self, outcome: PairOutcome) -> PairOutcome:
        """Give a failure its kind and reason if every problem of the pair is known; remember what passes."""
        found, causes = self.kind_of(outcome.pair, str(outcome.pair), outcome.problems)
        if found is not None:
            outcome.listed_as, outcome.reason = found.kind, found.entry.reason
        elif outcome.listed_as is None:  # the new causes first: they are what has to be looked at
            order = sorted(range(len(causes)), key=lambda index: causes[index] is not None)
            outcome.problems = [outcome.problems[index] for index in order]
        return outcome

    def kind_of(
        self, subject: Pair | tuple[str, str], name: str, problems: list[Problem]
    ) -> tuple[_Entry | None, list[_Entry | None]]:
        """The gravest entry if all problems are known, and the entry of each problem."""
        covering = [entry for entry in self._entries if entry.covers(subject)]
        for entry in covering:
            entry.met += 1
            if not problems:
                entry.passed.append(name)
        causes = [
            next((entry for entry in covering if entry.explains(problem)), None) for problem in problems
        ]
        found = [cause for cause in causes if cause is not None]
        if not found or len(found) < len(causes):
            return None, causes
        return max(found, key=lambda entry: _GRAVITY.index(entry.kind)), causes

    def now_passing(self) -> list[str]:
        """What is listed and passes: stale."""
        return sorted({name for entry in self._entries for name in entry.passed})

    def unused(self, kind: type[KnownPair] | type[KnownCase]) -> list[str]:
        """Entries of a kind that met nothing at all: the operator is gone, or its name is misspelt."""
        return [str(entry) for entry in self._entries if not entry.met and isinstance(entry.entry, kind)]
