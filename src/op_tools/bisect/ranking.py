"""Which operators are suspected before anything is moved: by what OpAutoCompare found in the first run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from op_tools.runs import BadInput, open_run

__all__ = ["Suspicion", "ranked", "suspicions"]

_WEIGHT = {"fail": 2, "lower_precision": 1}


@dataclass(frozen=True)
class Suspicion:
    """The worst that was found of an operator."""

    verdict: str
    error_over_bound: float
    reason: str = ""
    call_site: str = ""

    @property
    def weight(self) -> tuple[int, float]:
        """The heavier, the more likely the operator is at fault."""
        return _WEIGHT.get(self.verdict, 0), self.error_over_bound


def suspicions(folder: Path) -> dict[str, Suspicion]:
    """The worst of each operator at ATen level in a results folder; nothing if there are no results."""
    try:
        rows = list(open_run(folder).rows("autocompare"))
    except BadInput:  # the script ended before anything was judged: then nothing is suspected
        return {}
    worst: dict[str, Suspicion] = {}
    for row in rows:
        if row.get("level") != "aten":
            continue
        name = str(row.get("name", "")).partition(" ")[0]
        found = Suspicion(
            str(row.get("verdict", "")),
            _size(row.get("error_over_bound")),
            str(row.get("reason", "")),
            str(row.get("call_site", "")),
        )
        if name not in worst or found.weight > worst[name].weight:
            worst[name] = found
    return worst


def _size(value: object) -> float:
    if not isinstance(value, int | float):
        return 0.0
    return math.inf if math.isnan(value) else float(value)


def ranked(seen: Sequence[str], found: Mapping[str, Suspicion]) -> tuple[list[str], int]:
    """The operators, most suspicious first, and how many of them were judged wrong (or else: less precise)."""

    def weight(name: str) -> tuple[int, float]:
        return found[name].weight if name in found else (0, 0.0)

    order = sorted(
        seen, key=weight, reverse=True
    )  # stable: those of the same weight stay in the order of first use
    for level in sorted(_WEIGHT.values(), reverse=True):
        count = sum(weight(name)[0] >= level for name in order)
        if count:
            return order, count
    return order, 0
