"""What a run found, and what changed between two result files: tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from _ditorch.torch_tests.device_file import KnownPair
from _ditorch.torch_tests.opinfo.sweep import DatabaseRun
from _ditorch.torch_tests.outcomes import OpInfoCheck, PairOutcome, State
from _ditorch.torch_tests.results import Change, Changes, Row
from _ditorch.torch_tests.source.run import SourceRun
from dicore.console import make_table

__all__ = [
    "COLOURS",
    "coloured",
    "counted_states",
    "show_changes",
    "show_database",
    "show_source_run",
    "write_json",
]

# -- the operator database -------------------------------------------------------------------------------------

COLOURS = {
    State.PASSED: "green",
    State.FAILED: "bold red",
    State.ERROR: "bold red",
    State.TIMEOUT: "bold red",
    State.CRASH: "bold red",
    State.SKIPPED: "cyan",
    State.ARTEFACT: "cyan",
    State.REFUSAL: "cyan",
    State.GAP: "yellow",
}
_CAUSES = 20  # of one pair in the JSON file
_REMARKS = {
    "wider": "agree with the wider reference, the CPU does not",
    "verdict": "agree with neither, and their error is one of correct arithmetic (op_tools' verdict)",
}
_ALWAYS = (State.PASSED, State.FAILED, State.ERROR)


def write_json(findings: DatabaseRun, path: Path) -> None:
    """Everything, for programs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(as_json(findings), indent=1) + "\n")


def as_json(findings: DatabaseRun) -> dict[str, Any]:
    assert findings.facts is not None
    complete, expected = findings.complete, findings.expectations
    return {
        "torch": findings.facts.torch_version,
        "device": findings.options.device,
        "vendor": findings.facts.vendor,
        "bit_equal_rng": findings.facts.bit_equal_rng,
        "max_samples": findings.options.max_samples,
        "jobs": findings.limits.jobs,
        "seconds": round(findings.seconds, 2),
        "samples": sum(outcome.samples for outcome in findings.outcomes),
        "counts": findings.counts(),
        "wider": dict(Counter(outcome.pair.check for outcome in findings.outcomes if outcome.wider)),
        "verdict": dict(Counter(outcome.pair.check for outcome in findings.outcomes if outcome.verdict)),
        "planned": dict(Counter(pair.check for pair in findings.planned)),
        "not_run": [str(pair) for pair in findings.not_run],
        "now_passing": expected.now_passing() if complete else [],
        "unused_entries": expected.unused(KnownPair) if complete else [],
        "pairs": [_pair(outcome) for outcome in sorted(findings.outcomes, key=lambda found: found.pair)],
    }


def _pair(outcome: PairOutcome) -> dict[str, Any]:
    row: dict[str, Any] = {**asdict(outcome.pair), "state": outcome.state, "samples": outcome.samples}
    row |= {"failing": len(outcome.problems), "seconds": round(outcome.seconds, 4)}
    row |= {
        name: count
        for name in ("restrided", "wider", "verdict", "refused")
        if (count := getattr(outcome, name))
    }
    if outcome.worst:
        row |= {"message": outcome.worst.message, "detail": outcome.worst.detail}
        row["causes"] = [problem.message for problem in outcome.problems[:_CAUSES]]
    return row | ({"reason": outcome.reason} if outcome.reason else {})


def show_database(findings: DatabaseRun, console: Console) -> None:
    _show_counts(findings, console)
    _show_known(findings, console)
    _show_unexpected(findings, console)
    if findings.complete:
        for pair in findings.expectations.now_passing():
            console.print(
                f"[yellow]stale: listed and passes[/], take it off the list: {pair}", soft_wrap=True
            )
        for entry in findings.expectations.unused(KnownPair):
            console.print(
                f"[yellow]stale: no such pair[/], entry of the list: {escape(entry)}", soft_wrap=True
            )
    if findings.trouble:
        console.print(findings.trouble, markup=False)
    if findings.not_run:
        console.print(f"[bold red]{len(findings.not_run)} pairs were not run[/], e.g. {findings.not_run[0]}")


def counted_states(counters: list[Counter[State]]) -> list[State]:
    """The columns of a table of counts: some always, the others where there is something to count."""
    return [state for state in State if state in _ALWAYS or any(counter[state] for counter in counters)]


def coloured(state: State, count: int) -> str:
    return f"[{COLOURS[state]}]{count:,}[/]" if count else "0"


def _folding_table(title: str, *headings: str, show_lines: bool = False) -> Table:
    columns = (Column(heading, overflow="fold") for heading in headings)
    return Table(*columns, title=title, title_justify="left", show_lines=show_lines)


def _show_counts(findings: DatabaseRun, console: Console) -> None:
    facts, counts = findings.facts, findings.counts()
    assert facts is not None
    states = counted_states(list(counts.values()))
    table = make_table(title=f"OpInfo: {findings.options.device} against cpu, torch {facts.torch_version}")
    table.add_column("check", no_wrap=True)
    for heading in ("pairs", *states, "samples"):
        table.add_column(heading, justify="right", no_wrap=True)
    for check, counter in counts.items():
        mine = [outcome for outcome in findings.outcomes if outcome.pair.check is check]
        cells = [coloured(state, counter[state]) for state in states]
        table.add_row(check, f"{len(mine):,}", *cells, f"{sum(outcome.samples for outcome in mine):,}")
    console.print(table)
    numbers = "the CPU's, compared exactly" if facts.bit_equal_rng else "its own, compared by form only"
    console.print(
        f"{findings.seconds:.1f} s, {findings.limits.jobs} processes; its random numbers are {numbers}"
    )
    _show_remarks(findings, console)


def _show_remarks(findings: DatabaseRun, console: Console) -> None:
    for kind, fact in _REMARKS.items():
        found = [outcome for outcome in findings.outcomes if getattr(outcome, kind)]
        if found:
            samples = sum(getattr(outcome, kind) for outcome in found)
            names = sorted({f"{outcome.pair.op} {outcome.pair.dtype}" for outcome in found})
            listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            console.print(f"{samples:,} samples of {len(found):,} pairs {fact}: {listed}", soft_wrap=True)
    checks = (OpInfoCheck.OUT, OpInfoCheck.INPLACE, OpInfoCheck.NONCONTIGUOUS)
    refused = sum(outcome.refused for outcome in findings.outcomes if outcome.pair.check in checks)
    if refused:
        console.print(f"{refused:,} samples of {', '.join(checks)} are refused by both sides alike")
    restrided = sum(outcome.restrided for outcome in findings.outcomes)
    if restrided:
        console.print(f"{restrided:,} samples had equal values in another memory layout (information only)")


def _show_known(findings: DatabaseRun, console: Console) -> None:
    """Pairs that share operator, state and reason share a line; every pair is named."""
    groups: dict[tuple[State, str, str, str], list[str]] = {}
    for outcome in findings.outcomes:
        if outcome.reason:
            key = (outcome.state, str(outcome.pair.check), outcome.pair.op, outcome.reason)
            groups.setdefault(key, []).append(outcome.pair.dtype)
    if not groups:
        return
    table = _folding_table("Known and listed", "kind", "check", "operator", "dtypes", "reason")
    for (state, check, op, reason), dtypes in sorted(groups.items()):
        kind = f"[{COLOURS[state]}]{state}[/]"
        table.add_row(kind, check, op, " ".join(sorted(dtypes)), escape(reason))
    console.print(table)


def _show_unexpected(findings: DatabaseRun, console: Console) -> None:
    """One line for each operator, with the first cause; the JSON has the cause of every pair."""
    groups: dict[tuple[State, str, str], list[PairOutcome]] = {}
    for outcome in sorted(findings.unexpected, key=lambda found: found.pair):
        groups.setdefault((outcome.state, str(outcome.pair.check), outcome.pair.op), []).append(outcome)
    if not groups:
        return
    headings = ("state", "check", "operator", "dtypes", "samples", "first cause")
    table = _folding_table("Unexpected", *headings, show_lines=True)
    for (state, check, op), outcomes in sorted(groups.items()):
        failing, samples = sum(len(o.problems) for o in outcomes), sum(o.samples for o in outcomes)
        dtypes = " ".join(outcome.pair.dtype for outcome in outcomes)
        row = (check, op, dtypes, f"{failing}/{samples}", escape(outcomes[0].message))
        table.add_row(f"[{COLOURS[state]}]{state}[/]", *row)
    console.print(table)


# -- test files, and two result files beside each other --------------------------------------------------------

_MOST_CAUSES, _MOST_CHANGES = 30, 40


def show_source_run(run: SourceRun, csv: Path, console: Console) -> None:
    """Counts by file, then the causes of what failed, the frequent ones first."""
    counts = run.counts()
    states = counted_states(list(counts.values()))
    table = make_table(title=f"PyTorch's tests on {run.under_test.device}, torch {run.torch_version}")
    table.add_column("file", overflow="fold")
    for heading in ("cases", *states):
        table.add_column(heading, justify="right")
    for file, counter in counts.items():
        table.add_row(
            file, f"{sum(counter.values()):,}", *(coloured(state, counter[state]) for state in states)
        )
    console.print(table)
    _show_source_remarks(run, csv, console)
    _show_causes(run.unexpected, console)
    for name in run.expectations.now_passing():
        console.print(
            f"[yellow]stale: listed and passes[/], take it off the list: {escape(name)}", soft_wrap=True
        )


def _show_source_remarks(run: SourceRun, csv: Path, console: Console) -> None:
    forked = sum(facts.forks for facts in run.facts.values())
    shared = sum(not facts.forks and not facts.error for facts in run.facts.values())
    kinds = [f"{forked} with a process for each case"] * bool(forked)
    kinds += [f"{shared} with one process for all cases, a new one after a crash or a hang"] * bool(shared)
    console.print(
        f"{run.seconds:.1f} s, {run.jobs} processes; files: {', '.join(kinds) or 'none'}", soft_wrap=True
    )
    if run.tree.version and not run.torch_version.startswith(run.tree.version.partition("a")[0]):
        console.print(
            f"[yellow]The sources are of torch {run.tree.version}, the torch under test is {run.torch_version}[/]: some "
            "failures are the difference between the two.",
            soft_wrap=True,
        )
    others = sum(facts.others for facts in run.facts.values())
    if others:
        console.print(
            f"{others:,} cases of classes that are not made for a device were left out (--every-class)"
        )
    if run.deselected:
        console.print(f"{run.deselected:,} cases were not selected")
    if run.resumed:
        console.print(f"{run.resumed:,} results were there from before")
    console.print(f"every case: {csv}", soft_wrap=True)


def _show_causes(failed: list[Row], console: Console) -> None:
    groups: dict[tuple[State, str], list[Row]] = {}
    for row in failed:
        groups.setdefault((row.result, row.message[:160]), []).append(row)
    if not groups:
        return
    table = _folding_table("Unexpected, by cause", "state", "cases", "cause", "for example", show_lines=True)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    for (state, message), members in ordered[:_MOST_CAUSES]:
        example = f"{members[0].file}::{members[0].case}"
        table.add_row(f"[{COLOURS[state]}]{state}[/]", str(len(members)), escape(message), escape(example))
    console.print(table)
    if len(ordered) > _MOST_CAUSES:
        console.print(f"and {len(ordered) - _MOST_CAUSES} causes more, all in the CSV")


def show_changes(found: Changes, console: Console) -> None:
    """Regressions in full; of the rest the first ones."""
    lists = {
        "new failures": found.regressions,
        "fixed": found.fixed,
        "changed": found.changed,
        "no longer there": found.gone,
        "new": found.added,
    }
    console.print(
        ", ".join(f"{len(items):,} {name}" for name, items in lists.items()) + f", {found.same:,} the same"
    )
    for name, items in lists.items():
        most = len(items) if name == "new failures" else _MOST_CHANGES
        if items:
            console.print(_changes_table(name, items[:most]))
        if len(items) > most:
            console.print(f"and {len(items) - most:,} more")


def _changes_table(name: str, items: list[Change]) -> Table:
    table = _folding_table(name, "file", "case", "before", "after", "cause")
    for item in items:
        table.add_row(
            item.file, escape(item.case), item.before or "", item.after or "", escape(item.message[:200])
        )
    return table
