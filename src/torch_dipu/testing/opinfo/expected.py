"""The list of what is known not to pass, and the test that it is still true."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from torch_dipu.testing.opinfo.model import Outcome, Pair, Problem, State, Sweep

_KINDS = {"artefact": State.HARNESS, "refusal": State.REFUSAL, "gap": State.GAP}
_GRAVITY = (State.REFUSAL, State.HARNESS, State.GAP)
_KEYS = {"sweep", "op", "dtypes", "kind", "match", "torch", "without", "reason"}


class ListError(ValueError):
    """The file does not say what it has to."""


@dataclass
class Entry:
    """One known cause of non-passing pairs."""

    sweep: Sweep
    op: str
    kind: State
    reason: str
    dtypes: tuple[str, ...] | None = None
    match: str = ""
    torch: str = ""
    without: str = ""
    covered: int = 0
    passed: list[Pair] = field(default_factory=list)

    def covers(self, pair: Pair) -> bool:
        if self.sweep is not pair.sweep or not re.fullmatch(self.op, pair.op):
            return False
        return self.dtypes is None or pair.dtype in self.dtypes

    def explains(self, problem: Problem) -> bool:
        """A wrong answer is never a refusal, and a crash is only what an entry calls a crash."""
        if self.kind is State.REFUSAL and problem.state is not State.ERROR:
            return False
        if problem.message.startswith(("crashed", "timed out")) and not self.match:
            return False
        return bool(re.search(self.match, problem.message))

    def __str__(self) -> str:
        return f"{self.sweep}:{self.op}:{','.join(self.dtypes) if self.dtypes else '*'}"


@dataclass
class Expectations:
    """The entries that apply to one device and one version of torch."""

    entries: list[Entry]
    undefined_values: frozenset[str]
    host_arguments: frozenset[str]

    def drop_for(self, features: Collection[str]) -> None:
        """Forget the entries about what the vendor's library, once loaded, turns out to have."""
        self.entries = [entry for entry in self.entries if entry.without not in features]

    def classify(self, outcome: Outcome) -> Outcome:
        """Give a failure its kind and reason if every problem of the pair is known; remember what passes."""
        covering = [entry for entry in self.entries if entry.covers(outcome.pair)]
        for entry in covering:
            entry.covered += 1
            if not outcome.problems:
                entry.passed.append(outcome.pair)
        causes = [self._cause(problem, covering) for problem in outcome.problems]
        found = [cause for cause in causes if cause is not None]
        if found and len(found) == len(outcome.problems):
            gravest = max(found, key=lambda entry: _GRAVITY.index(entry.kind))
            outcome.known, outcome.reason = gravest.kind, gravest.reason
        else:  # the new causes first: they are what has to be looked at
            outcome.problems.sort(key=lambda problem: self._cause(problem, covering) is not None)
        return outcome

    @staticmethod
    def _cause(problem: Problem, entries: list[Entry]) -> Entry | None:
        return next((entry for entry in entries if entry.explains(problem)), None)

    def now_passing(self) -> list[Pair]:
        return sorted({pair for entry in self.entries for pair in entry.passed})

    def unused(self) -> list[Entry]:
        """Entries that met no pair at all: the operator is gone, or its name is misspelt."""
        return [entry for entry in self.entries if not entry.covered]


def load(device_type: str, torch_version: str, path: Path | None = None) -> Expectations:
    """The file that comes with the package, or one for another device."""
    source = path if path is not None else files("torch_dipu.testing.opinfo") / "expected.toml"
    try:
        data = tomllib.loads(source.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ListError(f"{source}: {error}") from error
    version = Version(Version(torch_version).base_version)
    entries = [_entry(raw) for raw in _tables(data, device_type)]
    applying = [entry for entry in entries if version in SpecifierSet(entry.torch)]
    names = {
        key: frozenset(data.get(key, {}).get("ops", ())) for key in ("undefined_values", "host_arguments")
    }
    return Expectations(applying, **names)


def _tables(data: dict[str, Any], device_type: str) -> Iterator[dict[str, Any]]:
    yield from data.get("every_device", ())
    yield from data.get("device", {}).get(device_type, ())


def _entry(raw: dict[str, Any]) -> Entry:
    unknown = raw.keys() - _KEYS
    missing = {"sweep", "op", "kind", "reason"} - raw.keys()
    if unknown or missing:
        raise ListError(f"{raw}: unknown keys {sorted(unknown)}, missing keys {sorted(missing)}")
    if raw["kind"] not in _KINDS:
        raise ListError(f"{raw}: kind must be one of {', '.join(_KINDS)}")
    dtypes = tuple(raw["dtypes"]) if "dtypes" in raw else None
    return Entry(
        Sweep(raw["sweep"]),
        raw["op"],
        _KINDS[raw["kind"]],
        raw["reason"],
        dtypes,
        raw.get("match", ""),
        raw.get("torch", ""),
        raw.get("without", ""),
    )
