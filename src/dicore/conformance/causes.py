"""The failures of a run by cause: what the reasons of many cases have in common once their numbers are left out."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from dicore.conformance.results import CaseResult, RunReport

__all__ = ["Cause", "causes_of", "causes_text"]

# What differs from case to case: results' names with positions, numbers, shapes, texts in quotes.
_PARTS = (
    (re.compile(r"\[[-\d, ]*\]"), "[...]"),
    (re.compile(r"\([-\d, ]+\)"), "(...)"),
    (re.compile(r"0x[0-9a-fA-F]+"), "N"),
    (re.compile(r"(?<![\w.])[-+]?\d+(\.\d*)?([eE][-+]?\d+)?(?!\w)"), "N"),
)
_LONGEST = 160


@dataclass
class Cause:
    """What some failures have in common."""

    text: str
    cases: list[CaseResult] = field(default_factory=list)

    @property
    def functions(self) -> Counter[str]:
        """How many cases of each function."""
        return Counter(case.function for case in self.cases)


def causes_of(report: RunReport) -> list[Cause]:
    """The causes of all failures, the most frequent first."""
    found: dict[str, Cause] = {}
    for result in report.failures():
        text = cause_of(result)
        found.setdefault(text, Cause(text)).cases.append(result)
    return sorted(found.values(), key=lambda cause: (-len(cause.cases), cause.text))


def cause_of(result: CaseResult) -> str:
    """The first reason of a case without what is its own."""
    first = result.reason.split("; ")[0].splitlines()[0] if result.reason else "no reason"
    text = first.replace(result.function, "the function")
    for pattern, put in _PARTS:
        text = pattern.sub(put, text)
    text = text if len(text) <= _LONGEST else text[:_LONGEST].rsplit(" ", 1)[0] + " ..."
    return f"{text} ({_size(result)})" if _size(result) else text


def _size(result: CaseResult) -> str:
    """How wrong a value is, in bounds of what rounding explains: the verdict passes what is within one."""
    error = result.error_over_bound
    if error is None or error <= 1:
        return ""
    return "up to 16 times what rounding explains" if error <= 16 else "far from what rounding explains"


def causes_text(report: RunReport, most: int = 6) -> str:
    """A page in Markdown: the counts, and a table of causes with their functions and an example of each."""
    counts = report.counts()
    total = ", ".join(f"{counts[status]:,} {status}" for status in counts)
    crashed = sum("crashed" in result.reason for result in report.failures())
    lines = [
        f"# Failures by cause: {report.suite} conformance",
        "",
        f"Vendor {report.made_by or 'unknown'}, {len(report.results):,} cases of {len(report.functions()):,} functions: {total}. "
        f"{crashed} processes crashed.",
        "",
        "| Cases | Cause | Functions (cases) | Example |",
        "|---:|---|---|---|",
    ]
    for cause in causes_of(report):
        functions = [f"`{name}` ({n})" for name, n in cause.functions.most_common()]
        more = [f"and {len(functions) - most} more"] if len(functions) > most else []
        listed = ", ".join((*functions[:most], *more))
        lines.append(f"| {len(cause.cases)} | {_cell(cause.text)} | {listed} | `{cause.cases[0].id}` |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
