"""Which cases a run wants: by function, dtype and id, and which it leaves out and why."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from diopi.conformance.case import Case
from diopi.library.wording import nearest
from diopi.table import Table
from diopi.table.model import DTYPE_GROUPS

DTYPES = tuple(name for group in DTYPE_GROUPS.values() for name in group)
# Headers whose operators a full run must cover.
COVERED_HEADERS = ("functions.h", "functions_ext.h")
_SKIP_KEYS = ("function", "dtype", "label", "case", "reason")


class SelectionError(ValueError):
    """The user asked for something that does not exist; says what and what there is."""


@dataclass(frozen=True)
class Skip:
    """Cases that are left out, and why. Patterns as in a shell; what is not given fits all."""

    reason: str
    function: str = "*"
    dtype: str = "*"
    label: str = "*"
    case: str = "*"

    def fits(self, case: Case) -> bool:
        pairs = (
            (case.function, self.function),
            (case.dtype, self.dtype),
            (case.label, self.label),
            (case.id, self.case),
        )
        return all(fnmatchcase(text, pattern) for text, pattern in pairs)


@dataclass(frozen=True)
class Selection:
    """What is run. None means all."""

    functions: frozenset[str] | None = None
    dtypes: frozenset[str] | None = None
    case: str | None = None
    quick: int | None = None
    """So many cases of each group, spread evenly over it."""
    skips: tuple[Skip, ...] = field(default=())

    def wants(self, case: Case) -> bool:
        if self.case is not None:
            return case.id == self.case
        # Of a candidate that came to nothing it may not be known which function it would have been of.
        if self.functions is not None and case.function and case.function not in self.functions:
            return False
        return self.dtypes is None or case.dtype in self.dtypes

    def skipped(self, case: Case) -> str | None:
        """The reason to leave a wanted case out, or None."""
        return next((skip.reason for skip in self.skips if skip.fits(case)), None)

    @property
    def whole(self) -> bool:
        """Whether every function should be met."""
        return self.functions is None and self.dtypes is None and self.case is None


def operators(table: Table) -> frozenset[str]:
    """The operators that a vendor is asked for: what a full run must cover."""
    return frozenset(
        f.name
        for f in table.functions.values()
        if f.header in COVERED_HEADERS and f.returns == "diopiError_t"
    )


def words(given: Iterable[str]) -> list[str]:
    """`a,b` and repeated options -> a list, blanks trimmed."""
    return [word.strip() for text in given for word in text.split(",") if word.strip()]


def functions_like(patterns: Sequence[str], known: Iterable[str]) -> frozenset[str]:
    """Names, patterns as in a shell (diopiConv*) or regular expressions that fit a whole name."""
    known = sorted(known)
    found: set[str] = set()
    for pattern in patterns:
        fits = {name for name in known if fnmatchcase(name, pattern) or _fullmatch(pattern, name)}
        if not fits:
            near = nearest(pattern, known)
            hint = f"; near are {', '.join(near)}" if near else ""
            raise SelectionError(f"no function of the interface is called {pattern!r}{hint}")
        found |= fits
    return frozenset(found)


def _fullmatch(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error:
        return False


def dtypes_named(names: Sequence[str]) -> frozenset[str]:
    """Checked names of dtypes."""
    plain = [name.removeprefix("torch.") for name in names]
    for name in plain:
        if name not in DTYPES:
            raise SelectionError(f"{name!r} is no dtype of the suite; known are {', '.join(DTYPES)}")
    return frozenset(plain)


def read_skips(path: Path) -> tuple[Skip, ...]:
    """Reads a skip file: TOML, one `[[skip]]` for each rule, each with a reason."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SelectionError(f"the skip file {path} cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SelectionError(f"the skip file {path} is not TOML: {error}") from None
    if set(document) - {"skip"} or not isinstance(document.get("skip", []), list):
        raise SelectionError(
            f"the skip file {path} must hold [[skip]] tables only; it has {sorted(document)}"
        )
    return tuple(_skip(path, number, rule) for number, rule in enumerate(document.get("skip", []), 1))


def _skip(path: Path, number: int, rule: Any) -> Skip:
    where = f"{path}: [[skip]] number {number}"
    if not isinstance(rule, dict) or any(not isinstance(value, str) for value in rule.values()):
        raise SelectionError(f"{where}: only texts are allowed; keys are {', '.join(_SKIP_KEYS)}")
    if unknown := sorted(set(rule) - set(_SKIP_KEYS)):
        raise SelectionError(f"{where}: unknown keys {unknown}; known are {', '.join(_SKIP_KEYS)}")
    if not rule.get("reason", "").strip():
        raise SelectionError(f"{where}: a skip needs a reason")
    if len(rule) == 1:
        raise SelectionError(f"{where}: say what to skip (function, dtype, label or case)")
    return Skip(**rule)
