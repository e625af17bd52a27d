"""`diopi conformance`: is a vendor's library right, operator by operator; and what changed between two runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from diopi.conformance.runner import Report, Request
    from diopi.conformance.selection import Selection
    from diopi.conformance.source import Source

__all__ = ["program"]

program = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=False,
    help="Check a DIOPI library case by case, or compare two such checks (diff).",
)

_ONE_SOURCE = "own, opinfo or models; repeat or separate by commas. Default: all."
_VENDOR = "An installed vendor instead of a file. Default: DIPU_DEVICE, else the best one installed."


@program.callback()
def run_command(
    context: typer.Context,
    library: Annotated[
        Path | None, typer.Option("--library", "-l", metavar="FILE", help="The library to check (.so).")
    ] = None,
    vendor: Annotated[str | None, typer.Option(metavar="NAME", help=_VENDOR, show_default=False)] = None,
    functions: Annotated[
        list[str] | None,
        typer.Option(
            "--functions", "--fname", "-f", metavar="NAMES", help="Only these: diopiAdd, 'diopiConv*'."
        ),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(metavar="NAMES", help="Only these dtypes.")] = None,
    source: Annotated[list[str] | None, typer.Option(metavar="NAMES", help=_ONE_SOURCE)] = None,
    cases: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Cases of your own instead of the suite's sources; may be repeated."
        ),
    ] = None,
    case: Annotated[
        str | None, typer.Option(metavar="ID", help="Run one case again, such as own:diopiAdd:12.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few cases of every function.")] = False,
    skip: Annotated[
        Path | None,
        # Escaped: help texts are rich's markup.
        typer.Option(metavar="FILE", help=r"TOML with [\[skip]] rules, each with a reason."),
    ] = None,
    adaptor: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rules of an adaptor in front of the library.")
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: one for each CPU, at most 8.")] = 0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds a case may take.")] = 60.0,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first failure.")] = False,
    seed: Annotated[int, typer.Option(help="Another seed draws other values for the own cases.")] = 0,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all results as JSON.")] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one HTML page that works offline.")
    ] = None,
) -> None:
    """Check a vendor's DIOPI library without a second machine: every case is judged against a CPU reference.

    Exit code 0: no failure; 1: failures; 2: bad usage; 5: nothing ran; 130: interrupted.
    """
    if context.invoked_subcommand is not None:
        return
    import diopi.conformance.alone  # noqa: F401  (torch without a device, which would own the runtime functions)
    from diopi.conformance.files import unwritable, write_reports
    from diopi.conformance.runner import Request

    problem = unwritable(json, junit, html)
    if problem is not None:
        _refuse(problem)
    if adaptor is not None:
        _adapt(adaptor)
    path, named = _library(library, vendor)
    sources, problems = _sources(source, cases, case, seed)
    request = Request(path, _selection(functions, dtype, case, quick, skip), sources)
    request.workers, request.timeout, request.fail_fast, request.seed = workers, timeout, fail_fast, seed
    files = [word for file in cases or () for word in ("--cases", str(file))]
    rules = ["--adaptor", str(adaptor)] if adaptor is not None else []
    request.command = ("diopi", "conformance", *named, *files, *rules)
    report = _run(request)
    report.problems += problems
    unwritten = write_reports(report, json, junit, html)
    _print(report)
    if unwritten:
        _refuse("; ".join(unwritten))
    raise typer.Exit(report.exit_code)


def _refuse(message: str) -> NoReturn:
    typer.echo(f"diopi conformance: {message}", err=True)
    raise typer.Exit(2)


def _adapt(rules: Path) -> None:
    """Checks the rules and lets every worker put them in front of the library it opens."""
    from diopi.adaptor import RulesError, read_rules

    try:
        read_rules(rules)
    except RulesError as error:
        _refuse(f"--adaptor: {error}")
    os.environ["DIOPI_ADAPTOR_CONFIG"] = str(rules.absolute())


def _library(library: Path | None, vendor: str | None) -> tuple[Path, tuple[str, str]]:
    """The file, and the words that name it again."""
    from diopi.conformance.libraries import default_library, vendor_library

    if library is not None and vendor is not None:
        _refuse("give --library or --vendor, not both")
    if library is not None:
        return library, ("--library", str(library))
    if vendor is not None:
        return vendor_library(vendor, "--vendor"), ("--vendor", vendor)
    return default_library()


def _selection(
    functions: list[str] | None, dtype: list[str] | None, case: str | None, quick: bool, skip: Path | None
) -> Selection:
    from diopi.conformance import selection as select
    from diopi.conformance.runner import QUICK_CASES
    from diopi.table import load

    wanted = select.words(functions or [])
    dtypes = select.words(dtype or [])
    return select.Selection(
        functions=select.functions_like(wanted, select.operators(load())) if wanted else None,
        dtypes=select.dtypes_named(dtypes) if dtypes else None,
        case=case,
        quick=QUICK_CASES if quick else None,
        skips=select.read_skips(skip) if skip is not None else (),
    )


def _sources(
    source: list[str] | None, cases: list[Path] | None, case: str | None, seed: int
) -> tuple[list[Source], list[str]]:
    """Where cases come from, and a line for each source that cannot be had."""
    from diopi.conformance.selection import words
    from diopi.conformance.sources import named_sources, source_of

    names = words(source or [])
    if cases and names:
        _refuse("--cases takes the place of --source; give one of them")
    if cases:
        return _case_files(cases), []
    if case is not None and not names:
        return source_of(case, seed)
    return named_sources(names or None, seed)


def _case_files(paths: list[Path]) -> list[Source]:
    from diopi.conformance.case_files import CaseFileError
    from diopi.conformance.case_files_source import case_file_sources

    try:
        return list(case_file_sources(paths))
    except CaseFileError as error:
        _refuse(f"--cases: {error}")


def _run(request: Request) -> Report:
    from diopi.conformance.console import progress
    from diopi.conformance.pool import PoolError
    from diopi.conformance.runner import Runner
    from diopi.conformance.selection import SelectionError

    with progress() as shown:
        try:
            return Runner(request, shown).run()
        except (PoolError, SelectionError) as error:
            failure = str(error)
    _refuse(failure)


def _print(report: Report) -> None:
    from diopi.conformance.console import print_report

    print_report(report, sys.stdout)


@program.command("diff")
def diff_command(
    a: Annotated[Path, typer.Argument(metavar="A.json", help="The JSON of the earlier run.")],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="The JSON of the later run.")],
    limit: Annotated[int, typer.Option(min=0, help="Cases shown of each kind; 0: all.")] = 20,
) -> None:
    """What changed from run A to run B: newly failing, newly passing, newly unsupported, missing and new cases.

    Exit code 0: nothing got worse; 1: cases fail, are unsupported or are missing that were not; 2: bad input.
    """
    from diopi.conformance.difference import compare, printed
    from diopi.conformance.json_report import ReportFileError, read_json

    try:
        first, second = read_json(a), read_json(b)
    except ReportFileError as error:
        _refuse(str(error))
    if first.suite != second.suite:
        _refuse(f"{a} is a report on {first.suite}, {b} on {second.suite}: give two of the same suite")
    difference = compare(first, second)
    typer.echo(printed(difference, limit))
    raise typer.Exit(1 if difference.worse else 0)
