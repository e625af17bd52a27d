"""What came of comparing the layers of two runs, as data, as JSON and as text."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from op_tools.diff.layer_values import Difference

__all__ = ["OUTSIDE", "Judgement", "LayerFinding", "LayerReport", "LayerRow", "print_layers"]

Judgement = Literal[
    "same",  # bit for bit
    "rounding",  # as far apart as rounding explains
    "follows",  # far apart, because what goes in is
    "random",  # the module draws random numbers
    "lower precision",  # computed again, and like a known arithmetic with fewer bits
    "suspect",  # grows far more than in other modules
    "wrong",  # computed again from its own inputs, and not what correct arithmetic gives
    "differs",  # a start that should be the same in both runs
    "one side",  # recorded in one run only
]
OUTSIDE = "(outside)"
_QUIET = frozenset(["same", "rounding", "follows", "one side", "random"])
_FINDS = frozenset(["suspect", "wrong", "differs"])
_MOST_ROWS = 20
_CAPTURE = "ditorch run script.py --tool capture --results A"
_MOST_NAMES = 10
_COLUMNS = ("module", "class", "part", "cosine", "rel. RMS", "amplif.", "judgement")
_WIDTHS = (22, 9, 16, 7, 8, 7, 9)
_SHORT = (("grad_output", "grad_out"), ("grad_input", "grad_in"), ("grad_weight:", "grad "))


@dataclass
class LayerRow:
    """One value of one module call in both runs."""

    module: str
    class_name: str
    part: str
    rank: int
    step: int
    difference: Difference
    judgement: Judgement = "same"
    side: str = ""  # the run that is wrong: A, B or both
    amplification: float = math.nan
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        plain = dataclasses.asdict(self)
        return {key: _number(value) for key, value in {**plain.pop("difference"), **plain}.items()}


@dataclass(frozen=True)
class LayerFinding:
    """Something that is not as it should be, and what to look at."""

    judgement: Judgement
    module: str
    class_name: str
    part: str
    side: str
    text: str
    call_site: str = ""
    rank: int = 0
    step: int = 0


@dataclass
class LayerReport:
    """The findings in the order of the forward pass and then of the backward pass, and every value."""

    a: str
    b: str
    compared: int = 0  # module calls
    findings: list[LayerFinding] = field(default_factory=list)
    rows: list[LayerRow] = field(default_factory=list)
    only_in_a: list[str] = field(default_factory=list)
    only_in_b: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def first(self) -> LayerFinding | None:
        """The first thing that goes wrong."""
        return next((finding for finding in self.findings if finding.judgement in _FINDS), None)

    @property
    def exit_code(self) -> int:
        """0: nothing but rounding differs; 1: something is wrong, suspect or not the same at the start."""
        return 0 if self.first is None else 1

    def counts(self) -> dict[str, int]:
        """How many values there are of each judgement."""
        return dict(Counter(row.judgement for row in self.rows))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: all values, not only those that are printed."""
        first = self.first
        return {
            "a": self.a,
            "b": self.b,
            "exit_code": self.exit_code,
            "compared": self.compared,
            "first": None if first is None else dataclasses.asdict(first),
            "counts": self.counts(),
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "only_in_a": self.only_in_a,
            "only_in_b": self.only_in_b,
            "notes": self.notes,
            "values": [row.as_dict() for row in self.rows],
        }


def _number(value: Any) -> Any:
    """JSON has neither NaN nor infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def print_layers(report: LayerReport) -> str:
    """The first finding in one line, the counts, then the values worth a look, at most 100 columns wide."""
    lines = [headline(report)]
    first = report.first
    if first is not None and first.call_site:
        lines.append(f"  at {first.call_site}")
    if first is not None and first.judgement != "differs":
        lines.append(
            f"  next: capture the operators of both runs ({_CAPTURE}) and compare them: op-tools diff A B"
        )
    lines += [f"  note: {note}" for note in report.notes]
    counted = ", ".join(f"{count} {judgement}" for judgement, count in sorted(report.counts().items()))
    lines.append(f"{report.compared} module calls compared; values: {counted or 'none'}")
    for side, names in (("A", report.only_in_a), ("B", report.only_in_b)):
        if names:
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            lines.append(f"{len(names)} only in {side}: {', '.join(names[:_MOST_NAMES])}{more}")
    table = _table(report)
    return "\n".join([*lines, table] if table else lines)


def headline(report: LayerReport) -> str:
    """The one line that matters."""
    first = report.first
    if first is None:
        if set(report.counts()) == {"same"}:
            return "no module is wrong or suspect: the two runs are the same bit for bit"
        return "no module is wrong or suspect: the two runs differ by no more than rounding explains"
    if first.judgement == "differs":
        return first.text
    if first.module == OUTSIDE:
        backward = first.part.startswith("grad")
        what = "in the loss function or its backward" if backward else "between the models"
        return f"suspect: something outside of all modules, {what}: {first.part} {first.text}"
    where = f"{first.module} ({first.class_name}), {first.part}{_when(report, first)}"
    side = f", in {'both runs' if first.side == 'both' else f'run {first.side}'}" if first.side else ""
    return f"first {first.judgement} module: {where}{side}: {first.text}"


def _when(report: LayerReport, first: LayerFinding) -> str:
    """The step and the rank, where there are several."""
    step = f", step {first.step}" if len({row.step for row in report.rows}) > 1 else ""
    return step + (f", rank {first.rank}" if len({row.rank for row in report.rows}) > 1 else "")


def _table(report: LayerReport) -> str:
    from op_tools import tables

    shown = [row for row in report.rows if row.judgement not in _QUIET]
    title = ""
    if not shown:
        shown = [row for row in report.rows if row.judgement in ("rounding", "follows")]
        shown = sorted(shown, key=lambda row: -row.difference.rel_rms)[:5]
        title = "the largest differences:\n" if shown else ""
    if not shown:
        return ""
    cells = [_cells(row) for row in shown]
    more = len(cells) - _MOST_ROWS
    text = title + tables.plain_table(_COLUMNS, cells[:_MOST_ROWS])
    return text + (f"\nand {more} more; --json shows all" if more > 0 else "")


def _cells(row: LayerRow) -> list[str]:
    """Cut to the widths of the columns: of a path the end says most, of everything else the beginning."""
    side = f" ({row.side})" if row.side in ("A", "B") else ""
    judgement = "low prec." if row.judgement == "lower precision" else f"{row.judgement}{side}"
    cosine, rel_rms = row.difference.cosine, row.difference.rel_rms
    numbers = ((cosine, ".5f" if cosine >= 0 else ".4f"), (rel_rms, ".1e"), (row.amplification, ".2g"))
    shown = ["" if math.isnan(value) else f"{value:{form}}" for value, form in numbers]
    part = row.part
    for long, short in _SHORT:
        part = part.replace(long, short)
    path = row.module if len(row.module) <= _WIDTHS[0] else "…" + row.module[1 - _WIDTHS[0] :]
    rest = zip((row.class_name, part, *shown, judgement), _WIDTHS[1:], strict=True)
    return [path, *(text if len(text) <= most else text[: most - 1] + "…" for text, most in rest)]
