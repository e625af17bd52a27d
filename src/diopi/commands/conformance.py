"""`diopi conformance`: is a vendor's library right, operator by operator; and what changed between two runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from dicore.conformance import command_line as shared

if TYPE_CHECKING:
    from dicore.conformance.case_filter import CaseFilter
    from dicore.conformance.cases import CaseSource

__all__ = ["program"]

program = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=False,
    help="Check a DIOPI library case by case, compare two such checks (diff), or list failures by cause (causes).",
)
shared.add_diff_command(program, "diopi")
shared.add_causes_command(program, "diopi")

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
    dtype: shared.DtypeOption = None,
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
    quick: shared.QuickOption = False,
    skip: shared.SkipOption = None,
    adaptor: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rules of an adaptor in front of the library.")
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: one for each CPU, at most 8.")] = 0,
    timeout: shared.TimeoutOption = 60.0,
    fail_fast: shared.FailFastOption = False,
    seed: Annotated[int, typer.Option(help="Another seed draws other values for the own cases.")] = 0,
    json: shared.JsonOption = None,
    junit: shared.JunitOption = None,
    html: shared.HtmlOption = None,
) -> None:
    """Check a vendor's DIOPI library without a second machine: every case is judged against a CPU reference.

    Exit code 0: no failure; 1: failures; 2: bad usage; 5: nothing ran; 130: interrupted.
    """
    if context.invoked_subcommand is not None:
        return
    paths = shared.ReportPaths("diopi", json, junit, html)
    paths.check()
    if adaptor is not None:
        _adapt(adaptor)
    from diopi.conformance import import_torch_without_device

    import_torch_without_device()
    from dicore.conformance.runner import RunOptions
    from diopi.conformance.suite import DiopiSuite

    path, named = _library(library, vendor)
    sources, problems = _sources(source, cases, case, seed)
    files = [word for file in cases or () for word in ("--cases", str(file))]
    rules = ["--adaptor", str(adaptor)] if adaptor is not None else []
    options = RunOptions(
        _case_filter(functions, dtype, case, quick, skip),
        workers=workers,
        timeout=timeout,
        fail_fast=fail_fast,
        seed=seed,
        command=("diopi", "conformance", *named, *files, *rules),
    )
    shared.run_command(DiopiSuite(path, sources), options, paths, problems)


def _refuse(message: str) -> NoReturn:
    shared.refuse("diopi", message)


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
    from diopi.conformance.suite import default_library, vendor_library

    if library is not None and vendor is not None:
        _refuse("give --library or --vendor, not both")
    if library is not None:
        return library, ("--library", str(library))
    if vendor is not None:
        return vendor_library(vendor, "--vendor"), ("--vendor", vendor)
    return default_library()


def _case_filter(
    functions: list[str] | None, dtype: list[str] | None, case: str | None, quick: bool, skip: Path | None
) -> CaseFilter:
    from dicore.conformance.case_filter import read_case_filter
    from diopi.conformance.diopi_case import interface_functions
    from diopi.table import load

    return read_case_filter(functions, interface_functions(load()), dtype, case, quick, skip)


def _sources(
    source: list[str] | None, cases: list[Path] | None, case: str | None, seed: int
) -> tuple[list[CaseSource], list[str]]:
    """Where cases come from, and a line for each source that cannot be had."""
    from dicore.conformance.case_filter import words
    from diopi.conformance.suite import named_sources, source_of_case

    names = words(source)
    if cases and names:
        _refuse("--cases takes the place of --source; give one of them")
    if cases:
        return _case_files(cases), []
    if case is not None and not names:
        return source_of_case(case, seed)
    return named_sources(names or None, seed)


def _case_files(paths: list[Path]) -> list[CaseSource]:
    from diopi.conformance.case_files import CaseFileError
    from diopi.conformance.case_files_source import case_file_sources

    try:
        return list(case_file_sources(paths))
    except CaseFileError as error:
        _refuse(f"--cases: {error}")
