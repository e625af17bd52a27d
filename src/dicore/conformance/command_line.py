"""The options that the commands of all suites share, and what a command does with a suite: run, report, compare."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from dicore.conformance.runner import RunOptions
    from dicore.conformance.suite import Suite

__all__ = [
    "DtypeOption",
    "FailFastOption",
    "HtmlOption",
    "JsonOption",
    "JunitOption",
    "QuickOption",
    "ReportPaths",
    "SkipOption",
    "TimeoutOption",
    "add_causes_command",
    "add_diff_command",
    "refuse",
    "run_command",
]

DtypeOption = Annotated[list[str] | None, typer.Option(metavar="NAMES", help="Only these dtypes.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="A few cases of every function.")]
# Escaped: help texts are rich's markup.
SkipOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help=r"TOML with [\[skip]] rules, each with a reason.")
]
FailFastOption = Annotated[bool, typer.Option("--fail-fast", help="Stop at the first failure.")]
TimeoutOption = Annotated[float, typer.Option(min=0.1, help="Seconds a case may take.")]
JsonOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Write all results as JSON.")]
JunitOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")]
HtmlOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write one HTML page that works offline.")
]


@dataclass(frozen=True)
class ReportPaths:
    """The files that a command is to write."""

    program: str
    json: Path | None
    junit: Path | None
    html: Path | None

    def check(self) -> None:
        """A run may take minutes: a file that cannot be written is refused before."""
        from dicore.conformance.report_files import unwritable

        problem = unwritable(self.json, self.junit, self.html)
        if problem is not None:
            refuse(self.program, problem)


def refuse(program: str, message: str) -> NoReturn:
    """Says what is wrong with the command, and ends it."""
    typer.echo(f"{program} conformance: {message}", err=True)
    raise typer.Exit(2)


def run_command(
    suite: Suite, options: RunOptions, paths: ReportPaths, problems: Sequence[str] = ()
) -> NoReturn:
    """Runs the suite, prints the summary, writes the files and ends with the exit code of the report."""
    from dicore.conformance.case_filter import SelectionError
    from dicore.conformance.console import print_report, progress_of_cases
    from dicore.conformance.report_files import write_reports
    from dicore.conformance.runner import run_suite
    from dicore.conformance.suite import SuiteError

    failure = ""
    with progress_of_cases() as on_progress:
        try:
            report = run_suite(suite, options, on_progress)
        except (SuiteError, SelectionError) as error:
            failure = str(error)
    if failure:
        refuse(paths.program, failure)
    report.problems += problems
    unwritten = write_reports(report, paths.json, paths.junit, paths.html)
    print_report(report, sys.stdout)
    if unwritten:
        refuse(paths.program, "; ".join(unwritten))
    raise typer.Exit(report.exit_code)


def add_causes_command(app: typer.Typer, program: str) -> None:
    """Gives the command of a suite its `causes`."""

    @app.command("causes")
    def causes_command(
        file: Annotated[Path, typer.Argument(metavar="RUN.json", help="The JSON of a run.")],
        out: Annotated[
            Path | None,
            typer.Option("--out", metavar="FILE", help="Write the page here instead of printing it."),
        ] = None,
    ) -> None:
        """The failures of a run by cause, as a page in Markdown: how many cases, of which functions, an example of each.

        Exit code 0: done; 2: bad input, or the page cannot be written.
        """
        from dicore.conformance.causes import causes_text
        from dicore.conformance.report_files import ReportFileError, read_json
        from dicore.files import write_text

        try:
            text = causes_text(read_json(file))
        except ReportFileError as error:
            refuse(program, str(error))
        if out is None:
            typer.echo(text)
            return
        try:
            write_text(out, text + "\n")
        except OSError as error:
            refuse(program, f"{out} cannot be written: {error.strerror or error}")


def add_diff_command(app: typer.Typer, program: str) -> None:
    """Gives the command of a suite its `diff`."""

    @app.command("diff")
    def diff_command(
        a: Annotated[Path, typer.Argument(metavar="A.json", help="The JSON of the earlier run.")],
        b: Annotated[Path, typer.Argument(metavar="B.json", help="The JSON of the later run.")],
        limit: Annotated[int, typer.Option(min=0, help="Cases shown of each kind; 0: all.")] = 20,
    ) -> None:
        """What changed from run A to run B: newly failing, newly passing, newly unsupported, missing and new cases.

        Exit code 0: nothing got worse; 1: cases fail, are unsupported or are missing that were not; 2: bad input.
        """
        from dicore.conformance.comparison import compare, comparison_text
        from dicore.conformance.report_files import ReportFileError, read_json

        try:
            first, second = read_json(a), read_json(b)
        except ReportFileError as error:
            refuse(program, str(error))
        if first.suite != second.suite:
            refuse(
                program,
                f"{a} is a report on {first.suite}, {b} on {second.suite}: give two of the same suite",
            )
        comparison = compare(first, second)
        typer.echo(comparison_text(comparison, limit))
        raise typer.Exit(1 if comparison.worse else 0)
