"""A run on the console: a progress bar while it lasts, then a summary."""

from __future__ import annotations

import shlex
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.text import Text

from dicore.conformance.results import STATUSES, CaseResult, RunReport
from dicore.conformance.runner import OnProgress
from dicore.console import WIDTH, counted, make_table, progress_bar

_MAX_FUNCTIONS = 40
_MAX_NAMES = 20
_STYLES = {"pass": "green", "fail": "bold red", "unsupported": "yellow", "skipped": "cyan"}


@contextmanager
def progress_of_cases() -> Iterator[OnProgress]:
    """A bar on stderr if that is a terminal; what it gives is told each result."""
    counts: Counter[str] = Counter()
    with progress_bar("conformance") as bar:

        def show(result: CaseResult | None, done: int, total: int) -> None:
            if result is not None:
                counts[result.status] += 1
            text = " ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
            bar.update(done, total, note=f"groups {text}")

        yield show


def rerun_command(report: RunReport, case: str) -> str:
    """What a user types to run one case again."""
    seed = ["--seed", str(report.seed)] if report.seed else []
    return shlex.join([*report.command, "--case", case, *seed])


def print_report(report: RunReport, stream: TextIO = sys.stdout) -> None:
    """The summary of a run."""
    # A line stays a line in a pipe or a file, whatever its length: it may be searched for.
    terminal = Console(file=stream)
    width = min(WIDTH, terminal.width) if terminal.is_terminal else WIDTH
    console = Console(file=stream, width=width, highlight=False, soft_wrap=not terminal.is_terminal)
    failures = report.failures()
    if failures:
        _print_failures(console, report, failures)
    for problem in report.problems:
        console.print(Text(f"not run: {problem}", style="yellow"))
    if report.not_covered:
        count, names = len(report.not_covered), ", ".join(report.not_covered[:_MAX_NAMES])
        more = f" and {count - _MAX_NAMES} more" if count > _MAX_NAMES else ""
        console.print(Text(f"not covered by any case ({count}): {names}{more}", style="bold red"))
    _print_skips(console, report)
    _print_counts(console, report)


def _print_failures(console: Console, report: RunReport, failures: list[CaseResult]) -> None:
    by_function: defaultdict[str, list[CaseResult]] = defaultdict(list)
    for result in failures:
        by_function[result.function or result.id].append(result)
    for function, results in list(by_function.items())[:_MAX_FUNCTIONS]:
        first = results[0]
        console.print(Text(f"{function}: {len(results)} failed", style="bold red"))
        console.print(Text(f"  {first.title}: {first.reason}"))
        console.print(Text(f"  {rerun_command(report, first.id)}", style="dim"), soft_wrap=True)
    if len(by_function) > _MAX_FUNCTIONS:
        more = counted(len(by_function) - _MAX_FUNCTIONS, "other function")
        console.print(f"... and {more} (--json and --html have all)")
    console.print()


def _print_skips(console: Console, report: RunReport) -> None:
    reasons = Counter(result.reason for result in report.results if result.status == "skipped")
    for reason, count in reasons.most_common():
        console.print(Text(f"skipped {count}: {reason}", style="cyan"))


def _print_counts(console: Console, report: RunReport) -> None:
    by_source: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for result in report.results:
        by_source[result.source][result.status] += 1
    title = f"{report.subject} ({report.made_by})" if report.made_by else report.subject
    table = make_table(title=title, width=console.width, title_style="bold")
    table.add_column("cases of")
    for status in STATUSES:
        table.add_column(status, justify="right", style=_STYLES[status])
    table.add_column("all", justify="right")
    for source, counts in by_source.items():
        table.add_row(source, *(str(counts[status]) for status in STATUSES), str(sum(counts.values())))
    if len(by_source) != 1:
        total = report.counts()
        table.add_section()
        table.add_row("all", *(str(total[status]) for status in STATUSES), str(len(report.results)))
    console.print(table, soft_wrap=False)
    text = f"{counted(len(report.functions()), 'function')} in {report.seconds:.1f} s"
    lower = sum(result.status == "pass" and bool(result.reason) for result in report.results)
    text += f"; {lower} passed with lower precision" if lower else ""
    console.print(Text(text))
    if report.interrupted:
        console.print(Text("interrupted: what had run is counted", style="bold yellow"))
