"""Which cases a run wants: by function, dtype and id, and which it leaves out and why."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dicore.conformance.cases import Case
from dicore.suggestions import closest

__all__ = [
    "DTYPES",
    "QUICK_CASES",
    "CaseFilter",
    "SelectionError",
    "SkipRule",
    "dtypes_named",
    "functions_like",
    "near_hint",
    "read_case_filter",
    "read_skip_rules",
    "words",
]

# By PyTorch's names, in the order of columns.
DTYPES = (
    "float16", "bfloat16", "float32", "float64",
    "int8", "uint8", "int16", "int32", "int64",
    "bool",
    "complex64", "complex128",
)  # fmt: skip
# Cases of each group in a quick run.
QUICK_CASES = 8
_SKIP_KEYS = ("function", "dtype", "label", "case", "reason")


class SelectionError(ValueError):
    """The user asked for something that does not exist; says what and what there is."""


@dataclass(frozen=True)
class SkipRule:
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
class CaseFilter:
    """What is run. None means all."""

    functions: frozenset[str] | None = None
    dtypes: frozenset[str] | None = None
    case: str | None = None
    quick: int | None = None
    """So many cases of each group, chosen evenly."""
    skips: tuple[SkipRule, ...] = ()
    partial: bool = False
    """The sources leave cases out, so not every function need be met."""

    def wants(self, case: Case) -> bool:
        if self.case is not None:
            return case.id == self.case
        # Of a candidate that came to nothing it may not be known which function it would have been of.
        if self.functions is not None and case.function and case.function not in self.functions:
            return False
        return self.dtypes is None or case.dtype in self.dtypes

    def skip_reason(self, case: Case) -> str | None:
        """The reason to leave a wanted case out, or None."""
        return next((rule.reason for rule in self.skips if rule.fits(case)), None)

    @property
    def whole(self) -> bool:
        """Whether every function should be met."""
        return self.functions is None and self.dtypes is None and self.case is None and not self.partial


def words(given: Iterable[str] | None) -> list[str]:
    """`a,b` and repeated options -> a list, blanks trimmed."""
    return [word.strip() for text in given or () for word in text.split(",") if word.strip()]


def near_hint(name: str, candidates: Iterable[str]) -> str:
    """`; near are a, b`, for the end of a message about a name that is none; empty when nothing is close."""
    near = closest(name, candidates, most=3, cutoff=0.5)
    return f"; near are {', '.join(near)}" if near else ""


def functions_like(patterns: Sequence[str], interface: Iterable[str]) -> frozenset[str]:
    """Names, patterns as in a shell (diopiConv*) or regular expressions that fit a whole name."""
    interface = sorted(interface)
    found: set[str] = set()
    for pattern in patterns:
        fits = {name for name in interface if fnmatchcase(name, pattern) or _fullmatch(pattern, name)}
        if not fits:
            raise SelectionError(
                f"no function of the interface is called {pattern!r}{near_hint(pattern, interface)}"
            )
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


def read_case_filter(
    functions: Iterable[str] | None,
    interface: Iterable[str],
    dtypes: Iterable[str] | None,
    case: str | None,
    quick: bool,
    skip_file: Path | None,
) -> CaseFilter:
    """The filter that the options of a command ask for; `interface` has the functions of the interface."""
    function_words, dtype_words = words(functions), words(dtypes)
    return CaseFilter(
        functions=functions_like(function_words, interface) if function_words else None,
        dtypes=dtypes_named(dtype_words) if dtype_words else None,
        case=case,
        quick=QUICK_CASES if quick else None,
        skips=read_skip_rules(skip_file) if skip_file is not None else (),
    )


def read_skip_rules(path: Path) -> tuple[SkipRule, ...]:
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
    return tuple(_skip_rule(path, number, rule) for number, rule in enumerate(document.get("skip", []), 1))


def _skip_rule(path: Path, number: int, rule: Any) -> SkipRule:
    where = f"{path}: [[skip]] number {number}"
    if not isinstance(rule, dict) or any(not isinstance(value, str) for value in rule.values()):
        raise SelectionError(f"{where}: only texts are allowed; keys are {', '.join(_SKIP_KEYS)}")
    if unknown := sorted(set(rule) - set(_SKIP_KEYS)):
        raise SelectionError(f"{where}: unknown keys {unknown}; known are {', '.join(_SKIP_KEYS)}")
    if not rule.get("reason", "").strip():
        raise SelectionError(f"{where}: a skip needs a reason")
    if len(rule) == 1:
        raise SelectionError(f"{where}: say what to skip (function, dtype, label or case)")
    return SkipRule(**rule)
