"""`ditorch torch-tests`: the command line."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import torch
import typer

from _ditorch.torch_tests import device_file, reports, results, tables
from _ditorch.torch_tests.device_under_test import DeviceUnderTest, device_under_test
from _ditorch.torch_tests.expectations import Expectations
from _ditorch.torch_tests.opinfo.pairs import dtype_named, name_of
from _ditorch.torch_tests.opinfo.sweep import DatabaseRun, RunLimits, options_for, sweep
from _ditorch.torch_tests.outcomes import OpInfoCheck, OpInfoOptions, PairSelection, StartError
from _ditorch.torch_tests.source.run import SourceRun, chosen_files, open_tree, run_files
from dicore.console import make_console, progress_bar

__all__ = ["program"]

DIFFERS, USAGE, INTERNAL, NOTHING = 1, 2, 3, 5
_QUICK_SAMPLES = 3
Show = Callable[[str, int, int], None]

program = typer.Typer(
    help="How well PyTorch's own tests pass on a device.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


@program.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    device: Annotated[
        str | None, typer.Option(help="Device under test; default: what ditorch chooses.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A file of your own instead of the device's.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: the cores.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds one pair or case may take.")] = 120.0,
    csv: Annotated[Path | None, typer.Option(help="Write a row for every case here.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with all cases here.")] = None,
    json: Annotated[Path | None, typer.Option(help="Database only: everything about every pair.")] = None,
    checks: Annotated[
        str | None, typer.Option(help=f"Database only: some of {', '.join(OpInfoCheck)}.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Database only: one dtype, few samples.")] = False,
    ops: Annotated[str | None, typer.Option(help="Database only: full-match pattern of operators.")] = None,
    dtypes: Annotated[
        str | None, typer.Option(help="Database only: some dtypes, e.g. f32,bf16,int64.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Database only: samples a pair, at most.")
    ] = None,
    bit_equal_rng: Annotated[
        bool | None,
        typer.Option("--bit-equal-rng/--no-bit-equal-rng", help="Database only; default: measured."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(help="A source tree of PyTorch: run its test files instead of the database."),
    ] = None,
    files: Annotated[
        str | None,
        typer.Option(help="Source only: comma-separated names or patterns, e.g. test_torch.py,nn/.*"),
    ] = None,
    cases: Annotated[str | None, typer.Option(help="Source only: pattern found in Class.method.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Source only: go on where the CSV ends.")] = False,
    mapping: Annotated[
        bool,
        typer.Option("--mapping/--no-mapping", help="Source only: with the names of cuda mapped or not."),
    ] = False,
    every_class: Annotated[
        bool, typer.Option("--every-class", help="Source only: also classes that are not made for a device.")
    ] = False,
    op_db: Annotated[
        str, typer.Option(hidden=True, help="MODULE:NAME of another database.")
    ] = OpInfoOptions.op_db,
) -> None:
    """Run PyTorch's operator database on a device and compare with the CPU; or, with --source, PyTorch's test files.

    Exit codes: 0 all passed or listed as known, 1 something unexpected, 2 usage, 3 the run itself failed, 5 nothing was
    run, 130 interrupted.
    """
    if context.invoked_subcommand is not None:
        return
    under_test, file = _prepared(device, config)
    limits = RunLimits(jobs or len(os.sched_getaffinity(0)), timeout)
    with _clear_errors():
        database_only = {"checks": checks, "quick": quick, "ops": ops, "dtypes": dtypes, "samples": samples}
        source_only = {"files": files, "cases": cases, "resume": resume, "mapping": mapping}
        _fitting(source, {**database_only, "json": json}, {**source_only, "every-class": every_class})
        if source is not None:
            tree = open_tree(source)
            found = SourceRun(
                under_test,
                torch.__version__,
                tree,
                chosen_files(tree, files.split(",") if files else file.source.files),
                re.compile(cases).pattern if cases else None,
                Expectations(file, torch.__version__),
                limits.seconds,
                limits.jobs,
                mapping=mapping,
                every_class=every_class,
            )
            _run_source(found, file, csv or Path(results.default_name(under_test.type)), html, resume=resume)
        selection = PairSelection(
            checks=_checks(checks),
            ops=re.compile(ops).pattern if ops else None,
            dtypes=tuple(name_of(dtype_named(name)) for name in dtypes.split(",")) if dtypes else None,
            one_dtype=quick,
        )
    most = samples or (_QUICK_SAMPLES if quick else None)
    options = options_for(under_test.device, file, max_samples=most, bit_equal_rng=bit_equal_rng, op_db=op_db)
    whole = selection == PairSelection() and most is None
    findings = DatabaseRun(options, Expectations(file, torch.__version__), limits, whole)
    _run_database(under_test, file, findings, selection)
    _write_database(findings, csv, html, json)
    raise typer.Exit(_exit_code(findings))


@program.command(name="compare")
def compare_results(
    before: Annotated[Path, typer.Argument(metavar="A.csv", help="The older result file.")],
    after: Annotated[Path, typer.Argument(metavar="B.csv", help="The newer one.")],
) -> None:
    """Show what got worse, what got better and what else changed from A.csv to B.csv.

    Exit codes: 0 nothing got worse, 1 something did, 2 usage.
    """
    with _clear_errors():
        found = results.compare(results.read(before), results.read(after))
    tables.show_changes(found, make_console())
    raise typer.Exit(DIFFERS if found.regressions else 0)


@program.command(name="page")
def make_page(
    path: Annotated[Path, typer.Argument(metavar="RESULTS.csv")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")],
) -> None:
    """Make the HTML page of a result file."""
    with _clear_errors():
        found = results.read(path)
    reports.page_of(found, _title(found)).write(output)
    typer.echo(f"{output} written, {len(found):,} cases")


@program.command(name="tables")
def make_tables(
    paths: Annotated[list[Path], typer.Argument(metavar="RESULTS.csv...")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The Markdown file to write.")],
    note: Annotated[
        list[str] | None, typer.Option(help="A sentence for the top; may be given again.")
    ] = None,
) -> None:
    """Make the published tables of one or more result files."""
    with _clear_errors():
        text = reports.document({path.name: results.read(path) for path in paths}, note or [])
    output.write_text(text, encoding="utf-8")
    typer.echo(f"{output} written")


# the database


def _run_database(
    under_test: DeviceUnderTest, file: device_file.DeviceFile, findings: DatabaseRun, selection: PairSelection
) -> None:
    console = make_console()
    with _progress("importing torch's operator database") as show, _start_errors(under_test):
        sweep(under_test, file, findings, selection, show)
    if findings.facts is None:  # interrupted before anything was known
        raise typer.Exit(findings.stopped)
    tables.show_database(findings, console)


def _write_database(findings: DatabaseRun, csv: Path | None, html: Path | None, json: Path | None) -> None:
    assert findings.facts is not None
    device, version = findings.options.device, findings.facts.torch_version
    outcomes = sorted(findings.outcomes, key=lambda outcome: outcome.pair)
    found = [results.row_of(outcome, device, version) for outcome in outcomes]
    with _clear_errors():
        if csv is not None:
            results.write(csv, found)
        if html is not None:
            reports.page_of(found, _title(found)).write(html)
        if json is not None:
            tables.write_json(findings, json)


def _exit_code(findings: DatabaseRun) -> int:
    if findings.stopped:
        return findings.stopped
    if not findings.outcomes:
        return NOTHING
    return DIFFERS if findings.unexpected or findings.not_run else 0


# source trees


def _run_source(
    found: SourceRun, file: device_file.DeviceFile, csv: Path, html: Path | None, *, resume: bool
) -> NoReturn:
    done = _earlier(csv, found, resume=resume)
    csv, html = csv.absolute(), html.absolute() if html else None
    console = make_console()
    with (
        _progress("importing test files") as show,
        results.Journal(csv) as journal,
        _start_errors(found.under_test),
    ):
        run_files(found, file, journal, done, show)
    results.write(csv, sorted(found.rows, key=lambda row: row.key))
    if html is not None:
        reports.page_of(found.rows, _title(found.rows)).write(html)
    tables.show_source_run(found, csv, console)
    code = found.stopped or (NOTHING if not found.rows else DIFFERS if found.unexpected else 0)
    raise typer.Exit(code)


def _earlier(csv: Path, found: SourceRun, *, resume: bool) -> list[results.Row]:
    """The rows to go on from."""
    if not csv.exists() or not csv.stat().st_size:
        return []
    if not resume:
        raise ValueError(f"{csv} exists. Go on from it with --resume, or name another file with --csv.")
    done = results.read(csv)
    other = [row for row in done if (row.device, row.torch) != (found.under_test.device, found.torch_version)]
    if other:
        what = f"of {other[0].device} and torch {other[0].torch}"
        raise ValueError(f"{csv} holds results {what}. Name another file with --csv.")
    return done


# what both need


def _prepared(device: str | None, config: Path | None) -> tuple[DeviceUnderTest, device_file.DeviceFile]:
    if importlib.util.find_spec("expecttest") is None:
        _leave(USAGE, "torch's tests need the package expecttest: pip install expecttest")
    with _clear_errors():
        under_test = device_under_test(device)
        return under_test, device_file.load(under_test.type, config)


def _fitting(source: Path | None, database_only: dict[str, object], source_only: dict[str, object]) -> None:
    for names, wrong, other in (
        (database_only, source is not None, "without"),
        (source_only, source is None, "with"),
    ):
        given = [f"--{name}" for name, value in names.items() if value]
        if wrong and given:
            raise ValueError(f"{', '.join(given)} can be used only {other} --source.")


def _checks(names: str | None) -> tuple[OpInfoCheck, ...]:
    if names is None:
        return tuple(OpInfoCheck)
    try:
        wanted = {OpInfoCheck(name.strip()) for name in names.split(",")}
    except ValueError as error:
        raise ValueError(f"{error}; the checks are {', '.join(OpInfoCheck)}") from error
    return tuple(check for check in OpInfoCheck if check in wanted)


def _title(found: list[results.Row]) -> str:
    return (
        f"PyTorch's own tests on {found[0].device}, torch {found[0].torch}"
        if found
        else "PyTorch's own tests"
    )


@contextmanager
def _progress(first: str) -> Iterator[Show]:
    with progress_bar(first) as bar:
        yield lambda label, done, total: bar.update(done, total, label=label[:60])


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Wrong input and files that cannot be written are said in one line."""
    try:
        yield
    except re.error as error:
        _leave(USAGE, f"{error.pattern!r} is no pattern: {error}")
    except (ValueError, OSError) as error:
        _leave(USAGE, str(error))


@contextmanager
def _start_errors(under_test: DeviceUnderTest) -> Iterator[None]:
    try:
        yield
    except StartError as error:
        _leave(INTERNAL, f"no process could be started for device {under_test.device}:\n{error}")


def _leave(code: int, message: str) -> NoReturn:
    typer.echo(f"ditorch torch-tests: {message}", err=True)
    raise typer.Exit(code)
