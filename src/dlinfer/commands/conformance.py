"""`dlinfer conformance`: are a vendor's kernels right, operator by operator; and what changed between two runs."""

from __future__ import annotations

from typing import Annotated

import typer

from dicore.conformance import command_line as shared

program = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=False,
    help="Check a vendor's kernels case by case, or compare two such checks (diff).",
)
shared.add_diff_command(program, "dlinfer")

_VENDOR = "The vendor to check. Default: DLINFER_VENDOR, else the best one for the device."


@program.callback()
def run_command(
    context: typer.Context,
    vendor: Annotated[str | None, typer.Option(metavar="NAME", help=_VENDOR, show_default=False)] = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu, dipu, cuda, ...")] = "cpu",
    operators: Annotated[
        list[str] | None,
        typer.Option("--operators", "-o", metavar="NAMES", help="Only these: rms_norm, 'paged_*'."),
    ] = None,
    dtype: shared.DtypeOption = None,
    case: Annotated[
        str | None, typer.Option(metavar="ID", help="Run one case again, such as own:rms_norm:12.")
    ] = None,
    quick: shared.QuickOption = False,
    skip: shared.SkipOption = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: one for each CPU, at most 8.")] = 1,
    timeout: shared.TimeoutOption = 300.0,
    fail_fast: shared.FailFastOption = False,
    seed: Annotated[int, typer.Option(help="Another seed draws other values.")] = 0,
    here: Annotated[
        bool, typer.Option("--here", help="Run in this process, for a debugger: a crash then ends all.")
    ] = False,
    json: shared.JsonOption = None,
    junit: shared.JunitOption = None,
    html: shared.HtmlOption = None,
) -> None:
    """Check a vendor's kernels: every case is judged beside the reference in float64 on the CPU.

    Exit code 0: no failure; 1: failures; 2: bad usage; 5: nothing ran; 130: interrupted.
    """
    if context.invoked_subcommand is not None:
        return
    paths = shared.ReportPaths("dlinfer", json, junit, html)
    paths.check()
    from dicore.conformance.case_filter import read_case_filter
    from dicore.conformance.runner import RunOptions
    from dlinfer.conformance.suite import DlinferSuite
    from dlinfer.interface import OPERATORS
    from dlinfer.vendors import chosen, using

    name = vendor or chosen(device.partition(":")[0]).name
    options = RunOptions(
        read_case_filter(operators, OPERATORS, dtype, case, quick, skip),
        workers=workers,
        timeout=timeout,
        fail_fast=fail_fast,
        seed=seed,
        command=("dlinfer", "conformance", "--vendor", name, "--device", device),
        in_process=here,
    )
    suite = DlinferSuite(name, device, seed)
    suite.check_device()
    with using(name):  # says what is wrong with the vendor before a worker starts
        pass
    shared.run_command(suite, options, paths)
