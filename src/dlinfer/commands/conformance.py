"""`dlinfer conformance`: are a vendor's kernels right, operator by operator."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from diopi.conformance.runner import Report
    from dlinfer.conformance.runner import Request

__all__ = ["conformance_command"]

_VENDOR = "The vendor to check. Default: DLINFER_VENDOR, else the best one for the device."


def conformance_command(
    vendor: Annotated[str | None, typer.Option(metavar="NAME", help=_VENDOR, show_default=False)] = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu, dipu, cuda, ...")] = "cpu",
    operators: Annotated[
        list[str] | None,
        typer.Option("--operators", "-o", metavar="NAMES", help="Only these: rms_norm, 'paged_*'."),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(metavar="NAMES", help="Only these dtypes.")] = None,
    case: Annotated[
        str | None, typer.Option(metavar="ID", help="Run one case again, such as own:rms_norm:12.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few cases of every operator.")] = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first failure.")] = False,
    seed: Annotated[int, typer.Option(help="Another seed draws other values.")] = 0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds a case may take.")] = 300.0,
    here: Annotated[
        bool, typer.Option("--here", help="Run in this process, for a debugger: a crash then ends all.")
    ] = False,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all results as JSON.")] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one HTML page that works offline.")
    ] = None,
) -> None:
    """Check a vendor's kernels: every case is judged beside the reference in float64 on the CPU.

    Exit code 0: no failure; 1: failures; 2: bad usage; 5: nothing ran; 130: interrupted.
    """
    from diopi.conformance.files import unwritable, write_reports

    problem = unwritable(json, junit, html)
    if problem is not None:
        _refuse(problem)
    from diopi.conformance.selection import dtypes_named, functions_like, words
    from dlinfer.conformance.runner import Request
    from dlinfer.interface import OPERATORS
    from dlinfer.vendors import chosen

    name = vendor or chosen(device.partition(":")[0]).name
    wanted, dtypes = words(operators or []), words(dtype or [])
    request = Request(
        vendor=name,
        device=device,
        operators=functions_like(wanted, OPERATORS) if wanted else None,
        dtypes=dtypes_named(dtypes) if dtypes else None,
        case=case,
        quick=quick,
        fail_fast=fail_fast,
        seed=seed,
        timeout=timeout,
        command=("dlinfer", "conformance", "--vendor", name, "--device", device),
    )
    report = _run(request, here)
    unwritten = write_reports(report, json, junit, html)
    if unwritten:
        _refuse("; ".join(unwritten))
    raise typer.Exit(report.exit_code)


def _refuse(message: str) -> NoReturn:
    typer.echo(f"dlinfer conformance: {message}", err=True)
    raise typer.Exit(2)


def _run(request: Request, here: bool) -> Report:
    from diopi.conformance.console import print_report, progress
    from dlinfer.conformance.apart import run_apart
    from dlinfer.conformance.runner import run

    with progress() as shown:
        report = (run if here else run_apart)(request, shown)
    print_report(report, sys.stdout)
    return report
