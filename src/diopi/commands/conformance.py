"""`diopi conformance`: is a vendor's library right, operator by operator; and what changed between two runs."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from diopi.conformance.runner import Report, Request
    from diopi.conformance.source import Source

__all__ = ["program"]

program = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=False,
    help="Check a DIOPI library case by case, or compare two such checks (diff).",
)

_ONE_SOURCE = "own, opinfo or models; repeat or separate by commas. Default: all."


@program.callback()
def run_command(
    context: typer.Context,
    library: Annotated[
        Path | None, typer.Option("--library", "-l", metavar="FILE", help="The library to check (.so).")
    ] = None,
    vendor: Annotated[
        str | None, typer.Option(metavar="NAME", help="An installed vendor instead of a file.")
    ] = None,
    functions: Annotated[
        list[str] | None,
        typer.Option(
            "--functions", "--fname", "-f", metavar="NAMES", help="Only these: diopiAdd, 'diopiConv*'."
        ),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(metavar="NAMES", help="Only these dtypes.")] = None,
    source: Annotated[list[str] | None, typer.Option(metavar="NAMES", help=_ONE_SOURCE)] = None,
    cases: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Cases of your own instead of the suite's sources.")
    ] = None,
    case: Annotated[
        str | None, typer.Option(metavar="ID", help="Run one case again, such as own:diopiAdd:12.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few cases of every function.")] = False,
    skip: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML with [[skip]] rules, each with a reason.")
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

    _check_outputs(json, junit, html)
    if adaptor is not None:
        _adapt(adaptor)
    request, problems = _request(
        library, vendor, functions, dtype, source, cases, case, quick, skip, workers, timeout, fail_fast, seed
    )
    if adaptor is not None:
        request = replace(request, options=(*request.options, "--adaptor", str(adaptor)))
    report = _run(request)
    report.problems += problems
    _write(report, json, junit, html)
    _print(report)
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


def _check_outputs(*paths: Path | None) -> None:
    """A run may take minutes: a report that cannot be written is said before."""
    for path in paths:
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            _refuse(f"{path} cannot be written: give a file in a folder that exists")


def _request(
    library: Path | None,
    vendor: str | None,
    functions: list[str] | None,
    dtype: list[str] | None,
    source: list[str] | None,
    cases: Path | None,
    case: str | None,
    quick: bool,
    skip: Path | None,
    workers: int,
    timeout: float,
    fail_fast: bool,
    seed: int,
) -> tuple[Request, list[str]]:
    from diopi.conformance import selection as select
    from diopi.conformance.runner import QUICK_CASES, Request
    from diopi.conformance.source import parted
    from diopi.conformance.sources import named_sources
    from diopi.table import load

    if library is not None and vendor is not None:
        _refuse("give --library or --vendor, not both")
    names = select.words(source or [])
    if case is not None and not names:
        try:
            names = [parted(case)[0]]
        except ValueError as error:
            _refuse(str(error))
    wanted = select.words(functions or [])
    dtypes = select.words(dtype or [])
    chosen = select.Selection(
        functions=select.functions_like(wanted, select.operators(load())) if wanted else None,
        dtypes=select.dtypes_named(dtypes) if dtypes else None,
        case=case,
        quick=QUICK_CASES if quick else None,
        skips=select.read_skips(skip) if skip is not None else (),
    )
    if cases is not None and (names and names != ["file"]):
        _refuse("--cases takes the place of --source; give one of them")
    sources, problems = ([_case_file(cases)], []) if cases is not None else named_sources(names or None, seed)
    options = ("--cases", str(cases)) if cases is not None else ()
    path = library if library is not None else _vendor_library(vendor)
    return Request(path, chosen, sources, workers, timeout, fail_fast, seed, options), problems


def _case_file(path: Path) -> Source:
    from diopi.conformance.case_files import CaseFileError
    from diopi.conformance.case_files_source import CaseFileSource

    if not path.is_file():
        _refuse(f"--cases: there is no file {path}")
    try:
        source = CaseFileSource(path)
        source.groups(None)
    except CaseFileError as error:
        _refuse(str(error))
    return source


def _vendor_library(vendor: str | None) -> Path:
    from diopi.vendors import choose

    return choose(vendor).library


def _run(request: Request) -> Report:
    from diopi.conformance.console import progress
    from diopi.conformance.pool import PoolError
    from diopi.conformance.runner import Runner

    with progress() as shown:
        try:
            return Runner(request, shown).run()
        except PoolError as error:
            failure = str(error)
    _refuse(failure)


def _write(report: Report, json: Path | None, junit: Path | None, html: Path | None) -> None:
    if json is not None:
        from diopi.conformance.json_report import write_json

        write_json(report, json)
    if junit is not None:
        from diopi.conformance.junit import write_junit

        write_junit(report, junit)
    if html is not None:
        from diopi.conformance.html_report import write_html

        write_html(report, html)


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
        difference = compare(read_json(a), read_json(b))
    except ReportFileError as error:
        _refuse(str(error))
    typer.echo(printed(difference, limit))
    raise typer.Exit(1 if difference.worse else 0)
