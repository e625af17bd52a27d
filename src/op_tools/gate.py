"""Is a run worse than an earlier one? Accuracy and time by operator signature, for continuous integration.

A run is summed up by signature: operator, phase, level, and the dtypes, shapes and device types of its tensors. The sum is
small enough to be committed to a repository, and two sums are all that is compared.
"""

from __future__ import annotations

import functools
import math
import re
import stat
import statistics
import sys
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dicore.files import write_bytes
from op_tools.runs import NOTHING, BadInput, Run, kind_of_path, open_run
from op_tools.storage.log import SUFFIX
from op_tools.tables import figure
from op_tools.verdict import WORST_FIRST

__all__ = [
    "CheckOutcome", "CheckRules", "Regression", "Signature", "Summary", "compare", "read_with_note",
    "save_summary", "summarise",
]  # fmt: skip

FORMAT = "op_tools check baseline"
_HOW = "Make one with `op-tools check --save baseline.json RUN`."
# Worse from left to right, labels between right and wrong. What was skipped was not compared.
_VERDICTS = tuple(reversed(WORST_FIRST))
_TENSOR = re.compile(
    r"(\w+(?:\[[\d, ]*\](?: torch\.\w+)?| torch\.\w+ \w+)@\w+)(?::\d+)?( stride \[[\d, ]*\])?"
)
# An error that is this far below its bound is rounding, whatever it was before.
_NEAR_BOUND = 0.5
_MADS = 3
# A call that took longer than 30 years was not measured right.
_LONGEST_MS = 1e12
# Of fewer ratios the middle half is made of the very operators that are judged by it.
LEAST_FOR_MACHINE = 8
_BETWEEN = " | "


class Signature(NamedTuple):
    """What two runs have in common when they run the same kernel on the same kind of data."""

    name: str
    phase: str
    level: str
    inputs: str

    @property
    def key(self) -> str:
        return _BETWEEN.join(self)

    @classmethod
    def of_key(cls, key: str) -> Signature:
        parts = key.split(_BETWEEN, 3)
        return cls(*parts, *("",) * (4 - len(parts)))


class Times(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """How long the calls of a signature took, in milliseconds. `mad` is the median distance from the median."""

    calls: int
    median: float
    mad: float
    where: str = ""

    @property
    def total(self) -> float:
        return self.calls * self.median


class Accuracy(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The worst verdict and the worst error, as a multiple of its bound, of the values of a signature."""

    values: int
    verdict: str
    error: float = 0.0
    where: str = ""


class Summary(msgspec.Struct, forbid_unknown_fields=True):
    """A run by signature."""

    format: str
    version: int
    time: dict[str, Times] = msgspec.field(default_factory=dict)
    accuracy: dict[str, Accuracy] = msgspec.field(default_factory=dict)


# --- from a run to its sum, and to a file ----------------------------------------------------------------


def summarise(run: Run) -> Summary:
    """Sum up the logs of OpTimeMeasure and OpAutoCompare. Raises BadInput if there is neither."""
    if not (run.has("time_measure") or run.has("autocompare")):
        raise BadInput(
            f"{run.path} has nothing to check: no log of OpAutoCompare and none of OpTimeMeasure. Run with "
            "`ditorch run script.py --tool autocompare --tool time`.",
            NOTHING,
        )
    return Summary(FORMAT, 1, dict(sorted(_times(run))), dict(sorted(_accuracy(run).items())))


@functools.lru_cache(maxsize=65536)
def _tensors(text: str) -> str:
    """Of `(float32[8, 4]@dev:0, 2.0)` the tensors: a number that changes from step to step makes no new signature."""
    return ", ".join(f"{tensor}{stride}" for tensor, stride in _TENSOR.findall(text))


def _signature(row: Mapping[str, Any], phase: str) -> str:
    inputs = row.get("input")
    text = _tensors(inputs) if isinstance(inputs, str) else ""
    return Signature(str(row.get("name", "")), phase, str(row.get("level", "api")), text).key


def _times(run: Run) -> Iterator[tuple[str, Times]]:
    found: dict[str, array[float]] = {}
    call_sites: dict[str, str] = {}
    for row in run.rows("time_measure"):
        phases = {"forward_elasped": row.get("phase", "forward"), "backward_elasped": "backward"}
        for column, phase in phases.items():
            time = row.get(column)
            if isinstance(time, float) and abs(time) <= _LONGEST_MS:
                key = _signature(row, str(phase))
                found.setdefault(key, array("d")).append(time)
                call_sites.setdefault(key, str(row.get("call_site", "")))
    for key, times in found.items():
        median = statistics.median(times)
        mad = statistics.median(abs(time - median) for time in times)
        yield key, Times(len(times), median, mad, call_sites[key])


def _accuracy(run: Run) -> dict[str, Accuracy]:
    found: dict[str, Accuracy] = {}
    for row in run.rows("autocompare"):
        verdict = row.get("verdict")
        if verdict not in _VERDICTS:
            continue
        key = _signature(row, str(row.get("phase", "forward")))
        error = row.get("error_over_bound")
        error = min(error, sys.float_info.max) if isinstance(error, float) and error > 0 else 0.0
        one = Accuracy(1, verdict, error, str(row.get("call_site", "")))
        found[key] = _worse(found[key], one) if key in found else one
    return found


def _worse(first: Accuracy, second: Accuracy) -> Accuracy:
    worst = max(first, second, key=lambda one: (_VERDICTS.index(one.verdict), one.error))
    return Accuracy(first.values + second.values, worst.verdict, max(first.error, second.error), worst.where)


def save_summary(summary: Summary, path: Path) -> None:
    """Write a sum without the paths of this machine, so that a new one differs from an old one where it must."""
    saved = Summary(
        FORMAT,
        1,
        {key: Times(t.calls, _short(t.median), _short(t.mad)) for key, t in summary.time.items()},
        {key: Accuracy(a.values, a.verdict, _short(a.error)) for key, a in summary.accuracy.items()},
    )
    text = msgspec.json.format(msgspec.json.encode(saved), indent=1)
    # One line a signature: that is what a reviewer wants to see changed.
    text = re.sub(rb"\{\s+(\"(?:calls|values)\"[^{}]*?)\s+\}", lambda match: _joined(match.group(1)), text)
    try:
        write_bytes(path, text + b"\n")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror or error}.") from None


def _joined(lines: bytes) -> bytes:
    return b"{" + b" ".join(lines.split()) + b"}"


def _short(number: float) -> float:
    return float(f"{number:.5g}")


def read_with_note(path: Path) -> tuple[Summary, str]:
    """The summary of a results folder, a log, or a file made by save_summary, and a line about older runs left out.

    Raises BadInput.
    """
    kind = kind_of_path(path)
    if stat.S_ISREG(kind) and path.suffix != SUFFIX:
        return _read_file(path), ""
    if not kind and path.suffix == ".json":
        raise BadInput(f"{path} does not exist. Expected a baseline or a results folder. {_HOW}")
    run = open_run(path)
    return summarise(run), run.about_older()


def _read_file(path: Path) -> Summary:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}.") from None
    try:
        summary = msgspec.json.decode(content, type=Summary)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{path} is not a baseline of `op-tools check`: {error}. {_HOW}") from None
    if summary.format != FORMAT or summary.version != 1:
        told = f"format {summary.format!r}, version {summary.version}"
        raise BadInput(f"{path} is not a baseline of `op-tools check`, or of a newer one: {told}. {_HOW}")
    strange = next((a.verdict for a in summary.accuracy.values() if a.verdict not in _VERDICTS), None)
    if strange is not None:
        raise BadInput(f"{path}: verdict {strange!r} is none of {', '.join(_VERDICTS)}. {_HOW}")
    return summary


# --- comparing two sums ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckRules:
    """What counts as worse."""

    time_ratio: float = 1.25
    accuracy_ratio: float = 4.0
    min_calls: int = 5
    min_ms: float = 1.0
    relative: bool = False
    strict: bool = False


@dataclass(frozen=True)
class Regression:
    """One signature that is worse, new and wrong, or missing."""

    kind: str  # accuracy, time or missing
    what: str  # WRONG, WORSE, SLOWER or MISSING
    signature: Signature
    text: str
    weight: float
    where: str = ""
    fails: bool = True

    def as_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in ("kind", "what", "text", "where", "fails")}
        return {**plain, **self.signature._asdict()}


@dataclass
class CheckOutcome:
    """All findings, the worst first, and how much was compared."""

    findings: list[Regression] = field(default_factory=list)
    compared_accuracy: int = 0
    compared_time: int = 0
    too_short: int = 0  # in both, but with too few calls or too little time to compare
    absent: tuple[str, ...] = ()  # of accuracy and time what the baseline has, but no signature in common
    strict: bool = False
    factor: float = 1.0
    relative_among: int | None = None  # how few there were, where --relative could not be done
    known_failures: int = 0
    new: int = 0

    @property
    def failures(self) -> list[Regression]:
        return [finding for finding in self.findings if finding.fails]

    @property
    def code(self) -> int:
        """The exit code."""
        if self.failures:
            return 1
        unseen = self.absent or (self.strict and self.too_short and not self.compared_time)
        return NOTHING if unseen or not (self.compared_accuracy or self.compared_time) else 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "worse": len(self.failures), "compared_accuracy": self.compared_accuracy, "compared_time": self.compared_time,
            "too_short": self.too_short, "absent": list(self.absent), "machine_factor": self.factor,
            "known_failures": self.known_failures, "new_signatures": self.new,
            "findings": [finding.as_dict() for finding in self.findings],
        }  # fmt: skip


def compare(baseline: Summary, run: Summary, rules: CheckRules) -> CheckOutcome:
    """What of the run is worse than the baseline."""
    before, after = _alike(baseline.accuracy, run.accuracy)
    sides = {"accuracy": (before.keys(), after.keys()), "time": (baseline.time.keys(), run.time.keys())}
    absent = tuple(kind for kind, (old, new) in sides.items() if old and not old & new)
    outcome = CheckOutcome(absent=absent, strict=rules.strict)
    _compare_accuracy(before, after, rules, outcome)
    _compare_time(baseline.time, run.time, rules, outcome)
    for kind, old, new in (("accuracy", before, after), ("time", baseline.time, run.time)):
        outcome.new += len(new.keys() - old.keys())
        for key in sorted(old.keys() - new.keys()):
            text = f"{'compared' if kind == 'accuracy' else 'measured'} in the baseline, not now"
            finding = Regression("missing", "MISSING", Signature.of_key(key), text, 0.0, fails=rules.strict)
            outcome.findings.append(finding)
    order = {"accuracy": 0, "time": 1, "missing": 2}
    outcome.findings.sort(key=lambda finding: (order[finding.kind], -finding.weight))
    return outcome


def _alike(
    first: dict[str, Accuracy], second: dict[str, Accuracy]
) -> tuple[dict[str, Accuracy], dict[str, Accuracy]]:
    """If only one of two runs knows the inputs of what it compared, they are compared without."""
    knows = [any(Signature.of_key(key).inputs for key in side) for side in (first, second)]
    if knows[0] == knows[1]:
        return first, second
    return _without_inputs(first), _without_inputs(second)


def _without_inputs(side: dict[str, Accuracy]) -> dict[str, Accuracy]:
    merged: dict[str, Accuracy] = {}
    for key, one in side.items():
        short = Signature.of_key(key)._replace(inputs="").key
        merged[short] = _worse(merged[short], one) if short in merged else one
    return merged


def _compare_accuracy(
    before: dict[str, Accuracy], after: dict[str, Accuracy], rules: CheckRules, outcome: CheckOutcome
) -> None:
    for key, now in after.items():
        old = before.get(key)
        rank = _VERDICTS.index(now.verdict)
        found: tuple[str, str] | None = None
        if old is None:
            if now.verdict == "fail":
                found = "WRONG", f"new, and {_judged(now)}"
        else:
            outcome.compared_accuracy += 1
            if now.verdict not in ("same", "pass") and rank > _VERDICTS.index(old.verdict):
                found = ("WRONG" if now.verdict == "fail" else "WORSE"), f"{_judged(old)} -> {_judged(now)}"
            elif now.verdict == "fail":
                outcome.known_failures += 1
            elif now.error > max(_NEAR_BOUND, rules.accuracy_ratio * old.error):
                found = "WORSE", f"error {figure(old.error)} -> {figure(now.error)} of its bound"
        if found is not None:
            what, text = found
            weight = rank * 1e6 + min(now.error, 1e6)
            finding = Regression("accuracy", what, Signature.of_key(key), text, weight, now.where)
            outcome.findings.append(finding)


def _judged(one: Accuracy) -> str:
    return f"{one.verdict} (error {figure(one.error)} of its bound)" if one.error else one.verdict


def _compare_time(
    before: dict[str, Times], after: dict[str, Times], rules: CheckRules, outcome: CheckOutcome
) -> None:
    common = [key for key in before if key in after]
    eligible = [
        key
        for key in common
        if min(before[key].calls, after[key].calls) >= rules.min_calls
        and after[key].total >= rules.min_ms
        and before[key].median > 0
    ]
    outcome.compared_time, outcome.too_short = len(eligible), len(common) - len(eligible)
    if rules.relative and eligible:
        ratios = [after[key].median / before[key].median for key in eligible]
        ratios = [ratio for ratio in ratios if ratio > 0 and math.isfinite(ratio)]
        if len(ratios) >= LEAST_FOR_MACHINE:
            outcome.factor = _machine_factor(ratios)
        else:
            outcome.relative_among = len(ratios)
    for key in eligible:
        old, now = before[key], after[key]
        median, noise = now.median / outcome.factor, max(old.mad, now.mad / outcome.factor)
        ratio = median / old.median
        if ratio > rules.time_ratio and median - old.median > _MADS * noise:
            text = f"{figure(old.median)} -> {figure(median)} ms, {ratio:.2f} times, {now.calls} calls"
            lost = (median - old.median) * now.calls
            finding = Regression("time", "SLOWER", Signature.of_key(key), text, lost, now.where)
            outcome.findings.append(finding)


def _machine_factor(ratios: list[float]) -> float:
    """How much slower this machine is: the geometric mean of the middle half, which single operators do not move."""
    ratios = sorted(ratios)
    middle = ratios[len(ratios) // 4 : len(ratios) - len(ratios) // 4]
    return statistics.geometric_mean(middle)
