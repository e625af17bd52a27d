"""What a run of test files found, and what changed between two result files: tables for people."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from _ditorch.torch_tests.changes import Change, Changes
from _ditorch.torch_tests.model import State
from _ditorch.torch_tests.rows import Row
from _ditorch.torch_tests.source.run import SourceRun
from _ditorch.torch_tests.tables import COLOURS, coloured, counted_states

__all__ = ["show", "show_changes"]

_MOST_CAUSES, _MOST_CHANGES = 30, 40


def show(run: SourceRun, csv: Path, console: Console) -> None:
    """Counts by file, then the causes of what failed, the frequent ones first."""
    counts = run.counts()
    states = counted_states(list(counts.values()))
    table = Table(title=f"PyTorch's tests on {run.place.device}, torch {run.torch_version}")
    table.add_column("file", overflow="fold")
    for heading in ("cases", *states):
        table.add_column(heading, justify="right")
    for file, counter in counts.items():
        table.add_row(
            file, f"{sum(counter.values()):,}", *(coloured(state, counter[state]) for state in states)
        )
    console.print(table)
    _show_remarks(run, csv, console)
    _show_causes(run.unexpected, console)
    for name in run.expectations.now_passing():
        console.print(
            f"[yellow]stale: listed and passes[/], take it off the list: {escape(name)}", soft_wrap=True
        )


def _show_remarks(run: SourceRun, csv: Path, console: Console) -> None:
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
    table = Table(title="Unexpected, by cause", show_lines=True)
    for heading in ("state", "cases", "cause", "for example"):
        table.add_column(heading, overflow="fold")
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
    table = Table(title=name)
    for heading in ("file", "case", "before", "after", "cause"):
        table.add_column(heading, overflow="fold")
    for item in items:
        table.add_row(
            item.file, escape(item.case), item.before or "", item.after or "", escape(item.message[:200])
        )
    return table
