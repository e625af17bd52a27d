"""Compares one iteration of a model on two devices, module by module (`op-tools diff A B --layers`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from dicore.suggestions import closest
from op_tools.diff.layer_growth import Growth, Measured, grown, measured_growth
from op_tools.diff.layer_report import OUTSIDE, LayerFinding, LayerReport, LayerRow, print_layers
from op_tools.diff.layer_rules import is_random, judged
from op_tools.diff.layer_values import (
    Difference,
    Key,
    LayerCall,
    LayerValues,
    RecordedLayers,
    difference,
    read_layers,
    read_values,
    read_weights,
)
from op_tools.runs import NOTHING, BadInput, Run
from op_tools.verdict import Verdict

__all__ = ["LayerReport", "compare_layers", "print_layers"]

# Two copies of one checkpoint may differ by a cast, not by more.
SAME_START = 8.0
# Products of TF32 and of bfloat16 differ by about this much: where a module shows it, others may do it too.
COARSE = 2.0**-10
# What is less than this many roundings apart needs no explanation.
_ROUNDINGS = 32.0
Pair = tuple[LayerCall, LayerCall]
Progress = Callable[[int, int], None]
# By call and part: the run that is judged (A, B or both), and how.
Verdicts = dict[Key, dict[str, tuple[str, Verdict]]]


def compare_layers(run_a: Run, run_b: Run, progress: Progress | None = None) -> LayerReport:
    """Compare what OpLayers recorded in two runs. Raises BadInput where there is nothing to compare.

    `progress` is told how many module calls are done, and of how many.
    """
    a, b = read_layers(run_a), read_layers(run_b)
    b, notes = _same_names(a, b)
    pairs = [(call, b.calls[key]) for key, call in a.calls.items() if key in b.calls]
    if not pairs:
        raise BadInput(_nothing_in_common(a, b), NOTHING)
    report = LayerReport(str(a.path), str(b.path), len(pairs))
    report.only_in_a = [call.label for key, call in a.calls.items() if key not in b.calls]
    report.only_in_b = [call.label for key, call in b.calls.items() if key not in a.calls]
    report.notes += [*a.notes, *b.notes, *notes]
    if a.ranks != b.ranks:
        report.notes.append(f"A has the ranks {a.ranks}, B has {b.ranks}; only those in both are compared")
    complete = [pair for pair in pairs if all(call.is_complete for call in pair)]
    if len(complete) < len(pairs):
        report.notes.append(
            f"{len(pairs) - len(complete)} calls are not complete on disk: a run was cut short?"
        )
        pairs, report.compared = complete, len(complete)
    if not pairs:
        raise BadInput(
            f"no module call is complete on disk in both {a.path} and {b.path}. Record them again.", NOTHING
        )
    if _weights_differ(pairs, report):
        return report
    _compare(a, pairs, report, progress or (lambda done, total: None))
    return report


# -- which calls belong together ------------------------------------------------------------------------------


def _same_names(a: RecordedLayers, b: RecordedLayers) -> tuple[RecordedLayers, list[str]]:
    """B's calls under A's keys. A model whose class has another name is the same model if its paths are."""
    models_a, models_b = ({key[2] for key in side.calls} for side in (a, b))
    if models_a & models_b or len(models_a) != 1 or len(models_b) != 1:
        return b, []
    name = next(iter(models_a))
    calls = {(*key[:2], name, *key[3:]): call for key, call in b.calls.items()}
    return replace(b, calls=calls), [f"the model is called {name} in A and {next(iter(models_b))} in B"]


def _nothing_in_common(a: RecordedLayers, b: RecordedLayers) -> str:
    names_a, names_b = (sorted({call.name for call in side.calls.values()}) for side in (a, b))
    steps = [sorted({key[1] for key in side.calls}) for side in (a, b)]
    if set(names_a) & set(names_b) and steps[0] != steps[1]:
        return (
            f"{a.path} recorded the steps {steps[0]}, {b.path} the steps {steps[1]}: no step is in both. "
            f"Record the same steps in both runs (OP_LAYERS_STEPS)."
        )
    near = closest(names_a[0], names_b)
    hint = f" The nearest to {names_a[0]!r} is {near[0]!r}." if near else ""
    return (
        f"{a.path} and {b.path} have no module in common: recordings of two different models? A begins with "
        f"{', '.join(names_a[:3])}, B with {', '.join(names_b[:3])}.{hint} Record the same script in both runs."
    )


# -- the start ------------------------------------------------------------------------------------------------


def _weights_differ(pairs: Sequence[Pair], report: LayerReport) -> bool:
    """Whether the two runs did not start from the same weights: then nothing else can be said."""
    start = min(call.key[1] for call, _ in pairs)
    first: LayerFinding | None = None
    count = 0
    for call, other in pairs:
        if call.key[1] != start or call.key[4]:
            continue
        for name, found in _named("weight", read_weights(call), read_weights(other)):
            if math.isnan(found.rel_rms) or found.rel_rms <= SAME_START * found.epsilon:
                continue
            count += 1
            report.rows.append(_row(call, name, found, "differs"))
            text = (
                f"weights differ at the start: not the same checkpoint or seed. {call.label} ({call.class_name}) {name} is "
                f"the first: relative RMS {found.rel_rms:.1e}{f', {found.note}' if found.note else ''}"
            )
            first = first or _finding("differs", call, name, "", text)
    if first is not None:
        report.findings.append(first)
        report.notes.append(f"{count} weights differ; nothing else was compared")
    return first is not None


def _inputs_differ(first: Measured, report: LayerReport) -> None:
    """Whether the model was given other data."""
    for part, found in first.parts.items():
        if part.startswith("input") and found.rel_rms > SAME_START * found.epsilon:
            call = first.call
            text = (
                f"inputs differ at the start: not the same data, or what prepares it is off. {part} of {call.label} "
                f"({call.class_name}): relative RMS {found.rel_rms:.1e}{f', {found.note}' if found.note else ''}"
            )
            report.findings.append(_finding("differs", call, part, "", text))
            for row in report.rows:
                if (row.module, row.part, row.rank, row.step) == (call.label, part, *call.key[:2]):
                    row.judgement = "differs"
            return


# -- everything else ------------------------------------------------------------------------------------------


def _compare(a: RecordedLayers, pairs: Sequence[Pair], report: LayerReport, progress: Progress) -> None:
    measured: dict[Key, Measured] = {}
    verdicts: Verdicts = {}
    for done, (call, other) in enumerate(pairs):
        progress(done, len(pairs))
        values, others = read_values(call), read_values(other)
        parts = dict(_parts(values, others))
        found = _judged_sides(values, others, parts)
        measured[call.key] = Measured(
            call,
            parts,
            is_judged=bool(found),
            is_random=is_random(values) or is_random(others),
            epsilon=max(_autocast_epsilon(values), _autocast_epsilon(others)),
        )
        verdicts[call.key] = found
        if call.class_name != other.class_name:
            report.notes.append(f"{call.label} is {call.class_name} in A and {other.class_name} in B")
    lower = [
        [v.reason for _, v in found.values() if v.status == "lower_precision"] for found in verdicts.values()
    ]
    coarse = [reasons[0] for reasons in lower if reasons]
    if coarse:
        report.notes.append(
            f"{len(coarse)} modules compute with fewer bits ({coarse[0]}); others are given room for it"
        )
    if any(item.is_drawn for item in measured.values()):
        report.notes.append(
            "dropout is on, so values differ by chance; for a full comparison set p = 0 or use eval()"
        )
    suspects: list[Growth] = []
    factors: dict[tuple[Key, str], float] = {}
    trees = list(_trees(a, measured))
    if not trees:
        raise BadInput(
            f"{a.path} does not say which module call is the outermost: its log is damaged. Record it again.",
            NOTHING,
        )
    for roots in trees:
        growths = measured_growth(roots, COARSE if coarse else 0.0)
        suspects += grown(growths)
        factors |= {(growth.at.call.key, growth.part): growth.factor for growth in growths}
    _fill_rows(measured, verdicts, factors, suspects, report)
    _inputs_differ(trees[0][0], report)
    _fill_findings(measured, verdicts, suspects, trees, report)


def _autocast_epsilon(values: LayerValues) -> float:
    said = values.facts.get("autocast")
    dtype = said[1] if isinstance(said, list | tuple) and len(said) == 2 else None
    return torch.finfo(dtype).eps if isinstance(dtype, torch.dtype) and dtype.is_floating_point else 0.0


def _parts(a: LayerValues, b: LayerValues) -> Iterator[tuple[str, Difference]]:
    for kind in ("weight", "buffer", "input", "output", "grad_output", "grad_input", "grad_weight"):
        mine, other = getattr(a, f"{kind}s"), getattr(b, f"{kind}s")
        named = isinstance(mine, Mapping)
        yield from _named(kind, mine, other) if named else _by_position(kind, mine, other)


def _named(kind: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, Difference]]:
    for name in dict.fromkeys((*a, *b)):
        found = difference(a.get(name), b.get(name))
        if found is not None:
            yield f"{kind}:{name}", found


def _by_position(kind: str, a: Sequence[Any], b: Sequence[Any]) -> Iterator[tuple[str, Difference]]:
    pairs = list(itertools.zip_longest(a, b))
    for position, (one, other) in enumerate(pairs):
        found = difference(one, other)
        if found is not None:
            yield (f"{kind}[{position}]" if len(pairs) > 1 else kind), found


def _judged_sides(
    a: LayerValues, b: LayerValues, parts: Mapping[str, Difference]
) -> dict[str, tuple[str, Verdict]]:
    """The worse verdict of each part and the run it is about; runs with the same values are judged once."""
    found = {part: ("B", verdict) for part, verdict in judged(b).items()}
    if all(part.is_same for part in parts.values()):
        return {part: ("both", verdict) for part, (_, verdict) in found.items()}
    for part, verdict in judged(a).items():
        _, other = found.get(part, ("", None))
        if other is None or _badness(verdict) > _badness(other):
            found[part] = ("A", verdict)
        elif _badness(verdict) == _badness(other):
            found[part] = ("both", other)
    return found


def _badness(verdict: Verdict) -> int:
    return {"fail": 2, "lower_precision": 1}.get(verdict.status, 0)


def _trees(a: RecordedLayers, measured: Mapping[Key, Measured]) -> Iterator[list[Measured]]:
    """The outermost calls of each rank and step, with those inside them; in the order in which they began."""
    # Calls are numbered from one; no parent is 0.
    parents = {(call.key[0], call.number): call for call in a.calls.values() if call.number > 0}
    roots: dict[tuple[int, int], list[Measured]] = {}
    for key, item in measured.items():
        above = parents.get((key[0], item.call.parent))
        while (
            above is not None and above.key not in measured
        ):  # only in A: what is inside belongs further out
            above = parents.get((key[0], above.parent))
        if above is None:
            roots.setdefault(key[:2], []).append(item)
        else:
            measured[above.key].inside.append(item)
    yield from (roots[key] for key in sorted(roots))


# -- the report -----------------------------------------------------------------------------------------------


def _row(call: LayerCall, part: str, found: Difference, judgement: Any, **more: Any) -> LayerRow:
    return LayerRow(call.label, call.class_name, part, call.key[0], call.key[1], found, judgement, **more)


def _finding(judgement: Any, call: LayerCall, part: str, side: str, text: str) -> LayerFinding:
    rank, step = call.key[:2]
    return LayerFinding(judgement, call.label, call.class_name, part, side, text, call.call_site, rank, step)


def _fill_rows(
    measured: Mapping[Key, Measured],
    verdicts: Verdicts,
    factors: Mapping[tuple[Key, str], float],
    suspects: Sequence[Growth],
    report: LayerReport,
) -> None:
    blamed = {(growth.at.call.key, growth.part): growth for growth in suspects}
    for key, item in measured.items():
        for part, found in item.parts.items():
            row = _row(item.call, part, found, _plain_judgement(item, part, found))
            row.amplification = factors.get((key, part), math.nan)
            side, verdict = verdicts[key].get(part, ("", None))
            if verdict is not None and verdict.status in ("fail", "lower_precision"):
                row.judgement = "wrong" if verdict.status == "fail" else "lower precision"
                row.side, row.reason = side, verdict.reason
            growth = blamed.get((key, part))
            if growth is not None:
                row.judgement, row.reason, row.part = "suspect", _why(growth), _part_of(growth)
                if growth.owner is not growth.at:
                    # A value that the module around it has spoiled goes by that module.
                    row.module = growth.owner.call.label if growth.owner is not None else OUTSIDE
                    row.class_name = growth.owner.call.class_name if growth.owner is not None else ""
            report.rows.append(row)


def _plain_judgement(item: Measured, part: str, found: Difference) -> Any:
    if math.isnan(found.rel_rms):
        return "one side"
    if found.is_same:
        return "same"
    if item.is_drawn and part.startswith("output"):
        return "random"
    return "rounding" if found.rel_rms <= _ROUNDINGS * found.epsilon else "follows"


def _part_of(growth: Growth) -> str:
    if growth.owner is growth.at:
        return growth.part
    name = growth.at.call.label
    if growth.owner is not None:
        name = name.removeprefix(f"{growth.owner.call.name}.")
    return f"{growth.part} of {name}"


def _why(growth: Growth) -> str:
    return (
        f"differs by {growth.difference:.1e} (relative RMS) where all that it depends on differs by at most "
        f"{growth.explained:.1e}: {growth.factor:.0f} times as much"
    )


def _fill_findings(
    measured: Mapping[Key, Measured],
    verdicts: Verdicts,
    suspects: Sequence[Growth],
    trees: Sequence[list[Measured]],
    report: LayerReport,
) -> None:
    """In the order of the passes: first what is off in forward, then in backward."""
    moments = _moments(trees)
    found: list[tuple[tuple[int, ...], LayerFinding]] = []
    for key, item in measured.items():
        for part, (side, verdict) in verdicts[key].items():
            if verdict.status == "fail":
                finding = _finding("wrong", item.call, part, side, verdict.reason)
                found.append((_moment(moments, key, part), finding))
    for growth in suspects:
        call = (growth.owner or growth.at).call
        finding = _finding("suspect", call, _part_of(growth), "", _why(growth))
        # The line that calls the inner module is nearer to the fault than the one that calls the outer.
        finding = replace(finding, call_site=growth.at.call.call_site)
        if growth.owner is None:
            finding = replace(finding, module=OUTSIDE, class_name="")
        found.append((_moment(moments, growth.at.call.key, growth.part), finding))
    found.sort(key=lambda item: item[0])
    report.findings += [finding for _, finding in found]


def _moments(trees: Sequence[list[Measured]]) -> dict[Key, tuple[int, int]]:
    """When each call began and ended."""
    found: dict[Key, tuple[int, int]] = {}
    pending = [(item, False) for roots in reversed(trees) for item in reversed(roots)]
    clock = 0
    while pending:
        item, has_run = pending.pop()
        clock += 1
        key = item.call.key
        if has_run:
            found[key] = (found[key][0], clock)
            continue
        found[key] = (clock, clock)
        pending.append((item, True))
        pending += [(child, False) for child in reversed(item.inside)]
    return found


def _moment(moments: Mapping[Key, tuple[int, int]], key: Key, part: str) -> tuple[int, ...]:
    """Forward goes from the beginning of a call to its end, backward from its end to its beginning."""
    began, ended = moments[key]
    if part.startswith("grad"):
        return (*key[:2], 1, -ended if part.startswith("grad_output") else -began)
    return (*key[:2], 0, ended if part.startswith("output") else began)
