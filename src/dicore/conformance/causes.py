"""The failures of a run by cause: what the reasons of many cases have in common once their numbers and names are left out."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from dicore.conformance.results import CaseResult, RunReport

__all__ = ["Cause", "cause_of", "causes_of", "causes_text", "kind_of"]

# What differs from case to case: positions, shapes, names in quotes, numbers.
_PARTS = (
    (re.compile(r"\[[-\d, ]*\]"), "[...]"),
    (re.compile(r"\([-\d, ]+\)"), "(...)"),
    (re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`"), "'...'"),
    (re.compile(r"(?<![\w.])[-+]?(0x[0-9a-fA-F]+|\d+(\.\d*)?([eE][-+]?\d+)?)(?!\w)"), "N"),
)
_LONGEST = 120
# A value that is off by more bounds than this is no question of rounding.
_NEAR = 16

_KINDS = (
    ("the process crashed or hung", re.compile(r"crashed|timed out|ended with")),
    (
        "no kernel for the dtype or the device",
        re.compile(r"threw a C\+\+ exception: c10::NotImplementedError"),
    ),
    ("refused by an exception", re.compile(r"threw a C\+\+ exception")),
    ("refused by an error code", re.compile(r"returned error code")),
    ("memory that is not the result's was written", re.compile(r"^(wrote|changed) ")),
    ("results were not written", re.compile(r"^left |^gave no ")),
    ("two runs differ", re.compile(r"disagree")),
    ("the suite itself", re.compile(r"^the suite ")),
)
_VALUES = ("wrong values", f"values up to {_NEAR} times as far off as rounding explains")


@dataclass
class Cause:
    """What some failures have in common."""

    kind: str
    text: str
    cases: list[CaseResult] = field(default_factory=list)

    @property
    def functions(self) -> Counter[str]:
        """How many cases of each function."""
        return Counter(case.function for case in self.cases)


def causes_of(report: RunReport) -> list[Cause]:
    """The causes of all failures, the most frequent first."""
    found: dict[tuple[str, str], Cause] = {}
    for result in report.failures():
        key = kind_of(result), cause_of(result)
        found.setdefault(key, Cause(*key)).cases.append(result)
    return sorted(found.values(), key=lambda cause: (-len(cause.cases), cause.kind, cause.text))


def kind_of(result: CaseResult) -> str:
    """What sort of failure it is; values are told apart by how far they are from what rounding explains."""
    first = result.reason.split("; ")[0]
    for kind, pattern in _KINDS:
        if pattern.search(first):
            return kind
    error = result.error_over_bound
    return _VALUES[error is not None and error <= _NEAR and "not explained by" not in result.reason]


def cause_of(result: CaseResult) -> str:
    """The first reason of a case without what is its own."""
    text = result.reason.split("; ")[0].partition("\n")[0].replace(result.function, "the function")
    for pattern, put in _PARTS:
        text = pattern.sub(put, text)
    if len(text) > _LONGEST:
        text = text[:_LONGEST].rsplit(" ", 1)[0] + " ..."
    return text or "no reason"


def causes_text(report: RunReport, most: int = 6) -> str:
    """A page in Markdown: the counts, then kinds of failures, then causes with their functions and an example of each."""
    counts, causes = report.counts(), causes_of(report)
    total = ", ".join(f"{counts[status]:,} {status}" for status in counts)
    kinds: Counter[str] = Counter()
    for cause in causes:
        kinds[cause.kind] += len(cause.cases)
    of = report.made_by or report.subject.rpartition("/")[2]
    lines = [
        f"# Failures by cause: {report.suite} conformance of {of}",
        "",
        f"{len(report.results):,} cases of {len(report.functions()):,} functions: {total}.",
        "",
        "| Cases | Kind |",
        "|---:|---|",
        *(f"| {number} | {kind} |" for kind, number in kinds.most_common()),
        "",
        "| Cases | Kind | Cause | Functions (cases) | Example |",
        "|---:|---|---|---|---|",
    ]
    for cause in causes:
        functions = [f"`{name}` ({n})" for name, n in cause.functions.most_common()]
        more = [f"and {len(functions) - most} more"] if len(functions) > most else []
        row = (cause.kind, _cell(cause.text), ", ".join((*functions[:most], *more)), f"`{cause.cases[0].id}`")
        lines.append(f"| {len(cause.cases)} | {' | '.join(row)} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
