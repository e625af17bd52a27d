"""How sure it is that a row of a comparison shows a fault: the file that is sent first should not be open to doubt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from op_tools.categories import RANDOM, base_name
from op_tools.verdict import is_label

__all__ = ["certainty", "is_finding"]

# From this many times its bound on, more does not make an error surer.
_SURE = 1000.0
# The classes, the surest first. What is not finite, not of the right shape or dtype, or not a copy needs no bound.
_NO_BOUND, _BEYOND, _ON_AVERAGE, _BY_DISTRIBUTION, _LABEL = 4, 3, 2, 1, 0


def is_finding(row: Mapping[str, Any], tool: str) -> bool:
    """Whether a row says that a value is wrong; one of OpAutoCompare, also that it has a label."""
    if _is_wrong(row):
        return True
    return tool == "autocompare" and is_label(_verdict(row))


def certainty(row: Mapping[str, Any]) -> tuple[int, int, bool]:
    """The larger, the surer: kind of finding, power of ten of the error over its bound, forward before backward."""
    kind, size = _kind(row)
    return kind, size, row.get("phase") != "backward"


def _kind(row: Mapping[str, Any]) -> tuple[int, int]:
    if not _is_wrong(row):
        return _LABEL, 0
    if base_name(str(row.get("name") or "").partition(" ")[0]) in RANDOM:
        return _BY_DISTRIBUTION, 0
    over = row.get("error_over_bound")
    if not isinstance(over, int | float) or not math.isfinite(over):
        return _NO_BOUND, 0
    if over <= 1:
        return _ON_AVERAGE, 0
    return _BEYOND, int(math.log10(min(over, _SURE)))


def _is_wrong(row: Mapping[str, Any]) -> bool:
    return _verdict(row) == "fail" or row.get("status") == "wrong"


def _verdict(row: Mapping[str, Any]) -> str:
    return str(row.get("verdict") or "")
