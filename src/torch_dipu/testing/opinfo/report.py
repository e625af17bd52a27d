"""What the sweep found: a table for people, JSON for programs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torch_dipu.testing.opinfo.expected import Expectations
from torch_dipu.testing.opinfo.model import Options, Outcome, Pair, State, Sweep, WorkerFacts

_COLOURS = {
    State.PASS: "green",
    State.FAIL: "bold red",
    State.ERROR: "bold red",
    State.HARNESS: "cyan",
    State.REFUSAL: "cyan",
    State.GAP: "yellow",
}


@dataclass
class Findings:
    """Everything one run of the sweep knows."""

    options: Options
    facts: WorkerFacts
    expectations: Expectations
    planned: list[Pair]
    jobs: int
    whole: bool  # all samples of the whole database were asked for
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0
    stopped: int = 0  # exit code, if the sweep ended before all pairs were run

    @property
    def complete(self) -> bool:
        """Only then can an entry of the list be called out of date."""
        return self.whole and not self.stopped

    @property
    def unexpected(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.state.unexpected]

    @property
    def not_run(self) -> list[Pair]:
        return sorted(set(self.planned) - {outcome.pair for outcome in self.outcomes})

    def counts(self) -> dict[Sweep, Counter[State]]:
        table: dict[Sweep, Counter[State]] = {sweep: Counter() for sweep in Sweep}
        for outcome in self.outcomes:
            table[outcome.pair.sweep][outcome.state] += 1
        return {sweep: counter for sweep, counter in table.items() if counter}

    def as_json(self) -> dict[str, Any]:
        return {
            "torch": self.facts.torch_version,
            "device": self.options.device,
            "vendor": self.facts.vendor,
            "bit_equal_rng": self.facts.bit_equal_rng,
            "variants": self.options.variants,
            "max_samples": self.options.max_samples,
            "jobs": self.jobs,
            "seconds": round(self.seconds, 2),
            "samples": sum(outcome.samples for outcome in self.outcomes),
            "counts": self.counts(),
            "planned": dict(Counter(pair.sweep for pair in self.planned)),
            "not_run": [str(pair) for pair in self.not_run],
            "now_passing": [str(pair) for pair in self.expectations.now_passing()] if self.complete else [],
            "unused_entries": [str(entry) for entry in self.expectations.unused()] if self.complete else [],
            "pairs": [outcome.as_json() for outcome in sorted(self.outcomes, key=lambda found: found.pair)],
        }

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n")


def show(findings: Findings, console: Console) -> None:
    _show_counts(findings, console)
    _show_known(findings, console)
    _show_unexpected(findings, console)
    if findings.complete:
        for pair in findings.expectations.now_passing():
            console.print(f"[yellow]now passes[/], take it off the list: {pair}", soft_wrap=True)
        for entry in findings.expectations.unused():
            console.print(f"[yellow]no such pair[/], entry of the list: {escape(str(entry))}", soft_wrap=True)
    if findings.not_run:
        console.print(f"[bold red]{len(findings.not_run)} pairs were not run[/], e.g. {findings.not_run[0]}")


def _show_counts(findings: Findings, console: Console) -> None:
    facts = findings.facts
    table = Table(title=f"OpInfo: {findings.options.device} against cpu, torch {facts.torch_version}")
    table.add_column("sweep")
    for heading in ("pairs", *State, "samples", "seconds of work"):
        table.add_column(heading, justify="right")
    for sweep, counter in findings.counts().items():
        mine = [outcome for outcome in findings.outcomes if outcome.pair.sweep is sweep]
        cells = [_coloured(state, counter[state]) for state in State]
        samples, seconds = sum(o.samples for o in mine), sum(o.seconds for o in mine)
        table.add_row(sweep, f"{len(mine):,}", *cells, f"{samples:,}", f"{seconds:,.1f}")
    console.print(table)
    restrided = sum(outcome.restrided for outcome in findings.outcomes)
    numbers = "the CPU's, compared exactly" if facts.bit_equal_rng else "its own, compared by form only"
    console.print(f"{findings.seconds:.1f} s, {findings.jobs} processes; its random numbers are {numbers}")
    if restrided:
        console.print(f"{restrided:,} samples had equal values in another memory layout (information only)")


def _coloured(state: State, count: int) -> str:
    return f"[{_COLOURS[state]}]{count:,}[/]" if count else "0"


def _show_known(findings: Findings, console: Console) -> None:
    """Pairs that share operator, state and reason share a line; every pair is named."""
    groups: dict[tuple[State, Sweep, str, str], list[str]] = {}
    for outcome in findings.outcomes:
        if outcome.reason:
            key = (outcome.state, outcome.pair.sweep, outcome.pair.op, outcome.reason)
            groups.setdefault(key, []).append(outcome.pair.dtype)
    if not groups:
        return
    table = Table(title="Known and listed", show_lines=False)
    for heading in ("kind", "sweep", "operator", "dtypes", "reason"):
        table.add_column(heading, overflow="fold")
    for (state, sweep, op, reason), dtypes in sorted(groups.items()):
        kind = f"[{_COLOURS[state]}]{state}[/]"
        table.add_row(kind, sweep, op, " ".join(sorted(dtypes)), escape(reason))
    console.print(table)


def _show_unexpected(findings: Findings, console: Console) -> None:
    """One line for each operator, with the first cause; the JSON has the cause of every pair."""
    groups: dict[tuple[State, Sweep, str], list[Outcome]] = {}
    for outcome in sorted(findings.unexpected, key=lambda found: found.pair):
        groups.setdefault((outcome.state, outcome.pair.sweep, outcome.pair.op), []).append(outcome)
    if not groups:
        return
    table = Table(title="Unexpected", show_lines=True)
    for heading in ("state", "sweep", "operator", "dtypes", "samples", "first cause"):
        table.add_column(heading, overflow="fold")
    for (state, sweep, op), outcomes in sorted(groups.items()):
        failing, samples = sum(len(o.problems) for o in outcomes), sum(o.samples for o in outcomes)
        dtypes = " ".join(outcome.pair.dtype for outcome in outcomes)
        row = (sweep, op, dtypes, f"{failing}/{samples}", escape(outcomes[0].message))
        table.add_row(f"[{_COLOURS[state]}]{state}[/]", *row)
    console.print(table)
