"""`op-tools check`: whether a run is worse than a baseline, for continuous integration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dicore.console import counted
from op_tools.runs import NOTHING, BadInput

if TYPE_CHECKING:
    from op_tools.gate import CheckOutcome, CheckRules, Regression

__all__ = ["check_command"]

_MOST_FINDINGS = 6
_WIDTH = 100
_TOOLS = {"accuracy": "autocompare", "time": "time"}


def check_command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="BASELINE RUN", help="Results folders; BASELINE may be a file made by --save."
        ),
    ],
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Make a baseline of the one RUN given.")
    ] = None,
    time_ratio: Annotated[
        float, typer.Option(min=1.0, help="How many times the baseline's median time is too slow.")
    ] = 1.25,
    accuracy_ratio: Annotated[
        float,
        typer.Option(min=1.0, help="How many times the baseline's error is too much, if near its bound."),
    ] = 4.0,
    min_calls: Annotated[int, typer.Option(min=1, help="Times of fewer calls are not compared.")] = 5,
    min_ms: Annotated[
        float, typer.Option(min=0.0, help="Operators that take less time than this in all are not compared.")
    ] = 1.0,
    relative: Annotated[
        bool,
        typer.Option(
            "--relative", help="Divide out how fast the machine was as a whole; needs 8 signatures."
        ),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Fail if operators of the baseline are missing, or no time is compared."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Compare the accuracy and the time of a run with a baseline, operator by operator.

    Operators are compared by signature: name, phase, level, and the dtypes, shapes and devices of their tensors.

    Exit code 0: not worse; 1: worse; 2: wrong usage; 5: nothing to compare, or no accuracy or no time at all where the
    baseline has it.
    """
    from op_tools import gate

    if save is not None:
        _save(paths, save)
        return
    if len(paths) != 2:
        raise BadInput(
            f"expected BASELINE and RUN, got {counted(len(paths), 'path')}. "
            "To make a baseline: `op-tools check --save baseline.json RUN`."
        )
    (baseline, old_note), (run, new_note) = map(gate.read_with_note, paths)
    rules = gate.CheckRules(time_ratio, accuracy_ratio, min_calls, min_ms, relative, strict)
    outcome = gate.compare(baseline, run, rules)
    notes = [note for note in dict.fromkeys((old_note, new_note)) if note]
    if as_json:
        typer.echo(json.dumps({**outcome.as_dict(), "notes": notes}, indent=2))
    elif outcome.code != NOTHING:
        typer.echo("\n".join(_lines(outcome, rules) + [_cut(note) for note in notes]))
    if outcome.code == NOTHING:
        raise BadInput(_nothing(outcome, rules, paths), NOTHING)
    raise typer.Exit(outcome.code)


def _nothing(outcome: CheckOutcome, rules: CheckRules, paths: list[Path]) -> str:
    """Why nothing is known."""
    if outcome.too_short and not outcome.absent:
        return (
            f"nothing to compare in time: {_too_short(outcome, rules)}. Run more steps, or choose --min-calls and "
            "--min-ms."
        )
    tools = " ".join(f"--tool {_TOOLS[kind]}" for kind in outcome.absent)
    return (
        f"nothing to compare{' in ' if tools else ''}{' and '.join(outcome.absent)}: no operator of {paths[0]} has the "
        f"same signature in {paths[1]}. Are they runs of the same program, with the same shapes, device and tools"
        f"{f' ({tools})' if tools else ''}?"
    )


def _too_short(outcome: CheckOutcome, rules: CheckRules) -> str:
    return f"{outcome.too_short} signatures have fewer than {rules.min_calls} calls or less than {rules.min_ms:g} ms in all"


def _save(paths: list[Path], target: Path) -> None:
    from op_tools import gate

    if len(paths) != 1:
        raise BadInput("--save takes one run: `op-tools check --save baseline.json RUN`.")
    summary, note = gate.read_with_note(paths[0])
    if not (summary.time or summary.accuracy):
        raise BadInput(f"{paths[0]} has logs, but no rows that a baseline could hold.", NOTHING)
    gate.save_summary(summary, target)
    typer.echo(
        f"{target}: accuracy of {len(summary.accuracy)} signatures, time of {len(summary.time)}; commit it and compare "
        f"with `op-tools check {target} RUN`"
    )
    if note:
        typer.echo(note)


def _lines(outcome: CheckOutcome, rules: CheckRules) -> list[str]:
    """At most 20 lines: the verdict, the worst findings with their call sites, and what else is to know."""
    from op_tools.gate import LEAST_FOR_MACHINE

    worse = outcome.failures
    compared = f"{outcome.compared_accuracy} signatures compared in accuracy, {outcome.compared_time} in time"
    absent = f"; no {' and no '.join(outcome.absent)} in common" if outcome.absent else ""
    lines = [f"{f'{len(worse)} worse' if worse else 'not worse'}: {compared}{absent}"]
    for finding in worse[:_MOST_FINDINGS]:
        lines += _told(finding)
    if len(worse) > _MOST_FINDINGS:
        lines.append(f"and {len(worse) - _MOST_FINDINGS} more; --json shows all")
    if outcome.too_short:
        lines.append(f"time not compared: {_too_short(outcome, rules)}")
    if outcome.relative_among is not None:
        few = f"{outcome.relative_among} times compared, --relative needs {LEAST_FOR_MACHINE}"
        lines.append(f"the speed of the machine is not divided out: {few}")
    if outcome.factor != 1.0:
        lines.append(f"this machine took {outcome.factor:.2f} times as long as the baseline's; divided out")
    if outcome.known_failures:
        lines.append(f"{outcome.known_failures} signatures fail as they did in the baseline")
    missing = [finding for finding in outcome.findings if not finding.fails]
    if missing:
        names = sorted({finding.signature.name for finding in missing})
        lines.append(_cut(f"not in this run: {len(missing)} signatures of the baseline: {', '.join(names)}"))
    return lines


def _told(finding: Regression) -> list[str]:
    signature = finding.signature
    head = f"{finding.what:<7} {signature.name} {signature.phase}"
    lines = [_cut(f"{head}: {finding.text}")]
    call_site = finding.where.split(" ", 1)[0]
    details = "  ".join(filter(None, (call_site, signature.inputs)))
    return lines + ([_cut(f"        {details}")] if details else [])


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
