"""`dicp conformance`: is a backend right, operator by operator and model by model; and what changed between two runs."""

from __future__ import annotations

from typing import Annotated

import typer

from dicore.conformance import command_line as shared

__all__ = ["program"]

program = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=False,
    help="Check a backend beside eager PyTorch, or compare two such checks (diff).",
)
shared.add_diff_command(program, "dicp")
shared.add_causes_command(program, "dicp")


@program.callback()
def run_command(
    context: typer.Context,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="As in torch.compile(backend=...).", show_default=False)
    ] = "",
    dynamic: Annotated[
        str, typer.Option(metavar="true|false|all", help="Compiled for any size, for fixed ones, or both.")
    ] = "all",
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cpu, dipu, cuda, ...")] = "cpu",
    ops: Annotated[
        list[str] | None,
        typer.Option(
            "--ops", "-o", metavar="NAMES", help="Only these operators or models: add, '_softmax*', llama."
        ),
    ] = None,
    dtype: shared.DtypeOption = None,
    case: Annotated[
        str | None, typer.Option(metavar="ID", help="Run one case again, such as operators:add:12.")
    ] = None,
    quick: shared.QuickOption = False,
    skip: shared.SkipOption = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: one for each CPU, at most 8.")] = 0,
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
    """Check a backend: what it compiles must give what eager PyTorch gives. An operator that it leaves to eager is unsupported.

    Exit code 0: no failure; 1: failures; 2: bad usage; 5: the backend compiled nothing; 130: interrupted.
    """
    if context.invoked_subcommand is not None:
        return
    from dicp.conformance.suite import MODES, DicpSuite
    from dicp.errors import DicpError
    from dicp.registry import find, names

    if not backend:
        shared.refuse("dicp", f"give --backend NAME; installed are {', '.join(names()) or 'none'}")
    if dynamic not in MODES:
        shared.refuse("dicp", f"--dynamic {dynamic}: expected one of {', '.join(MODES)}")
    paths = shared.ReportPaths("dicp", json, junit, html)
    paths.check()
    try:
        find(backend)
    except DicpError as error:
        shared.refuse("dicp", str(error))
    from dicore.conformance.case_filter import SelectionError, read_case_filter
    from dicore.conformance.runner import RunOptions

    suite = DicpSuite(backend, device, dynamic, seed)
    try:
        wanted = read_case_filter(ops, suite.functions(), dtype, case, quick, skip)
    except SelectionError as error:
        shared.refuse("dicp", str(error))
    options = RunOptions(
        wanted,
        workers=workers,
        timeout=timeout,
        fail_fast=fail_fast,
        seed=seed,
        command=("dicp", "conformance", "--backend", backend, "--device", device),
        in_process=here,
    )
    shared.run_command(suite, options, paths)
