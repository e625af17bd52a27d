"""The command line of the sweep."""

from __future__ import annotations

import importlib.util
import os
import re
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from torch_dipu.testing.opinfo import expected, report
from torch_dipu.testing.opinfo.model import Options, Selection, Sweep
from torch_dipu.testing.opinfo.plan import dtype_named, name_of
from torch_dipu.testing.opinfo.pool import Pool, StartError

DIFFERS, USAGE, INTERNAL, NOTHING, INTERRUPTED = 1, 2, 3, 5, 130
_QUICK_SAMPLES = 3
_WIDTH = 100

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def sweep(
    device: Annotated[str, typer.Option(help="device under test; cpu compares the CPU with itself")] = "dipu",
    forward: Annotated[bool, typer.Option(help="every operator with every dtype")] = True,
    gradients: Annotated[bool, typer.Option(help="every differentiable operator, and its backward")] = True,
    refusals: Annotated[bool, typer.Option(help="inputs that the CPU refuses must be refused")] = True,
    quick: Annotated[bool, typer.Option("--quick", help="every operator, one dtype, few samples")] = False,
    ops: Annotated[str | None, typer.Option(help="full-match pattern of operator names")] = None,
    dtypes: Annotated[str | None, typer.Option(help="comma-separated, e.g. f32,bf16,int64")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="at most so many samples a pair")] = None,
    variants: Annotated[bool, typer.Option(help="also the in-place and out= forms")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="processes; default: the cores")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="seconds one pair may take")] = 120.0,
    bit_equal_rng: Annotated[
        bool | None, typer.Option("--bit-equal-rng/--no-bit-equal-rng", help="default: measured")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="write every pair's result here")] = None,
    expected_file: Annotated[
        Path | None, typer.Option("--expected", help="another list of known pairs")
    ] = None,
    op_db: Annotated[str, typer.Option(hidden=True, help="MODULE:NAME of another database")] = Options.op_db,
) -> None:
    """Run PyTorch's OpInfo database on DEVICE and compare with the CPU.

    Exit codes: 0 all pairs pass or are listed as known, 1 something unexpected, 2 usage, 3 the sweep itself
    failed, 5 nothing was compared, 130 interrupted.
    """
    console = Console(width=_WIDTH) if not Console().is_terminal else Console()
    if importlib.util.find_spec("expecttest") is None:
        _leave(USAGE, "torch's operator database needs the package expecttest: pip install expecttest")
    wanted = zip(Sweep, (forward, gradients, refusals), strict=True)
    try:
        selection = Selection(
            sweeps=tuple(sweep for sweep, wish in wanted if wish),
            ops=re.compile(ops).pattern if ops else None,
            dtypes=tuple(name_of(dtype_named(name)) for name in dtypes.split(",")) if dtypes else None,
            one_dtype=quick,
        )
        known = expected.load(torch.device(device).type, torch.__version__, expected_file)
    except (ValueError, re.error, RuntimeError) as error:
        _leave(USAGE, str(error))
    options = Options(
        device,
        samples or (_QUICK_SAMPLES if quick else None),
        variants,
        bit_equal_rng,
        op_db,
        known.undefined_values,
        known.host_arguments,
    )
    jobs = jobs or len(os.sched_getaffinity(0))
    try:
        findings = _run(options, selection, known, jobs, timeout, console)
    except StartError as error:
        _leave(INTERNAL, f"no worker could be started for device {device}:\n{error}")
    report.show(findings, console)
    if json is not None:
        findings.write(json)
    raise typer.Exit(_exit_code(findings))


def _run(
    options: Options,
    selection: Selection,
    known: expected.Expectations,
    jobs: int,
    timeout: float,
    console: Console,
) -> report.Findings:
    start = time.perf_counter()
    with Pool(options, jobs, timeout, _start_method(options.device)) as pool:
        with console.status("importing torch's operator database"):
            pairs = pool.plan(selection)
        assert pool.facts is not None
        known.drop_for(pool.facts.vendor.get("features", ()))
        unlimited = selection == Selection() and options.max_samples is None
        findings = report.Findings(options, pool.facts, known, pairs, jobs, unlimited)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("comparing", total=len(pairs))
            try:
                for outcome in pool.run(pairs):
                    findings.outcomes.append(known.classify(outcome))
                    current = f"{outcome.pair.sweep} {outcome.pair.op[:28]:28}"
                    progress.update(task, advance=1, description=current)
            except KeyboardInterrupt:
                findings.stopped = INTERRUPTED
            except (
                StartError
            ) as error:  # a replacement for a crashed worker: what was found so far still counts
                findings.stopped = INTERNAL
                console.print(f"no further worker could be started: {error}", markup=False)
    findings.seconds = time.perf_counter() - start
    return findings


def _start_method(device: str) -> str:
    """Importing the database may touch torch's own accelerators, which a forked process cannot use then."""
    ours = torch._C._get_privateuse1_backend_name()
    if torch.version.cuda is not None:  # importing the database starts CUDA, which does not survive a fork
        return "spawn"
    return "forkserver" if torch.device(device).type in ("cpu", ours) else "spawn"


def _exit_code(findings: report.Findings) -> int:
    if findings.stopped:
        return findings.stopped
    if not findings.outcomes:
        return NOTHING
    return DIFFERS if findings.unexpected or findings.not_run else 0


def _leave(code: int, message: str) -> None:
    typer.echo(message, err=True)
    raise typer.Exit(code)
