"""Which labels are no finding: arithmetic with fewer bits than the dtype has, allowed by name or declared by a device.

A label such as `lower_precision` says that a value is neither right nor wrong. A strict gate fails on it unless somebody has said
that this is how it should be: `OPERATOR` or `OPERATOR:ARITHMETIC` on the command line, or a device profile, a TOML file with

    [[lower_precision]]                     # the label
    operators = ["aten.mm.*", "torch.mm"]   # names, or patterns that match a whole name
    arithmetic = "TF32"                     # a pattern in the reason of the verdict; default: any
    reason = "Products of float32 matrices are made in TF32."

Profiles of devices whose defaults are published lie in `profiles/`, by device type, and hold without being asked for.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from op_tools.verdict import is_label

__all__ = ["Allowance", "Allowances", "BadAllowance", "read_profile"]

_PROFILES = Path(__file__).with_name("profiles")
_DEVICE = re.compile(r"@([a-z_]+)")
_KEYS = {"operators": list, "arithmetic": str, "reason": str}


class BadAllowance(ValueError):
    """A text or a file that allows nothing; the message says what was expected."""


@dataclass(frozen=True)
class Allowance:
    """One label, or one arithmetic, that is no finding for some operators."""

    operators: re.Pattern[str]  # matches a whole name
    arithmetic: re.Pattern[str]  # is found in the reason
    label: str = ""  # empty: any

    @classmethod
    def of(cls, text: str) -> Allowance:
        """`OPERATOR`, `OPERATOR:ARITHMETIC` or the name of a label. Raises BadAllowance."""
        operators, _, arithmetic = text.strip().partition(":")
        if not operators:
            raise BadAllowance(
                f"{text!r} names no operator. Expected OPERATOR or OPERATOR:ARITHMETIC, such as aten.mm.* or '.*:TF32', or "
                "the name of a label, such as lower_precision"
            )
        return cls(_pattern(operators), _pattern(arithmetic))

    def covers(self, operator: str, label: str, reason: str) -> bool:
        named = self.operators.fullmatch(operator) or self.operators.fullmatch(label)
        fits = self.label in ("", label) and self.arithmetic.search(reason)
        return bool(named and fits)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise BadAllowance(
            f"{text!r} is not a valid pattern ({error}). Expected a name, or a regular expression that matches a whole name"
        ) from error


def read_profile(path: Path) -> list[Allowance]:
    """The declarations of a device profile. Raises BadAllowance."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadAllowance(f"{path} cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadAllowance(f"{path} is no TOML: {error}") from error
    return [
        _declared(path, label, entry)
        for label, entries in document.items()
        for entry in _listed(path, label, entries)
    ]


def _listed(path: Path, label: str, entries: Any) -> list[Any]:
    if not isinstance(entries, list):
        raise BadAllowance(f"{path}: expected [[{label}]] before its keys, as a table for each declaration")
    return entries


def _declared(path: Path, label: str, entry: Any) -> Allowance:
    if not isinstance(entry, dict):
        raise BadAllowance(f"{path}: expected [[{label}]] before its keys, as a table for each declaration")
    for key, value in entry.items():
        if key not in _KEYS or not isinstance(value, _KEYS[key]):
            known = ", ".join(f"{name} ({kind.__name__})" for name, kind in _KEYS.items())
            raise BadAllowance(
                f"{path}: [[{label}]] {key} = {value!r} is not understood. The keys are: {known}"
            )
    operators = entry.get("operators")
    if not operators or not all(isinstance(name, str) and name for name in operators):
        raise BadAllowance(f"{path}: [[{label}]] needs operators, a list of names or patterns")
    either = "|".join(f"(?:{_pattern(name).pattern})" for name in operators)
    return Allowance(_pattern(either), _pattern(entry.get("arithmetic", "")), label)


@functools.cache
def _of_device(kind: str) -> tuple[Allowance, ...]:
    """What the packaged profile of a device type declares; nothing where there is none."""
    path = _PROFILES / f"{kind}.toml"
    return tuple(read_profile(path)) if path.is_file() else ()


@dataclass(frozen=True)
class Allowances:
    """What was allowed for one run."""

    given: tuple[Allowance, ...] = ()

    @classmethod
    def of(cls, texts: Iterable[str], profiles: Iterable[str]) -> Allowances:
        """From the words of --allow and the files of --profile. Raises BadAllowance."""
        by_name = [Allowance.of(text) for text in texts]
        declared = [allowance for path in profiles for allowance in read_profile(Path(path))]
        return cls((*by_name, *declared))

    def finding(self, row: Mapping[str, Any]) -> str:
        """The label of a row of OpAutoCompare that nothing allows; empty where there is none."""
        label, reason = str(row.get("verdict") or ""), str(row.get("reason") or "")
        if not is_label(label):
            return ""
        operator = str(row.get("name") or "").partition(" ")[0]
        devices = set(_DEVICE.findall(str(row.get("input") or "")))
        declared = [allowance for kind in devices for allowance in _of_device(kind)]
        covered = any(one.covers(operator, label, reason) for one in (*self.given, *declared))
        return "" if covered else label
