"""`op-tools trace`: the measured calls of a run on a time line, for Perfetto."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from op_tools.runs import BadInput, open_run

__all__ = ["trace_command"]


def trace_command(
    run: Annotated[Path, typer.Argument(help="The results folder of a run.")] = Path("op_tools_results"),
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="The file to write; compressed if it ends with .gz. Default: RUN/trace.json."
        ),
    ] = None,
    steps: Annotated[
        str | None, typer.Option(help="Only these optimizer steps: 5, 0,3 or 10-20. Default: all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write what OpTimeMeasure measured as a trace that opens in ui.perfetto.dev.

    One process per rank, tracks for forward and backward, steps and modules around the calls, arrows from each call
    to its backward, and memory over time where the run watched it.

    Exit code 0: written; 2: wrong usage; 5: nothing was measured.
    """
    from op_tools.tools.capture import numbers
    from op_tools.trace import write_trace

    try:
        wanted = numbers(steps) if steps is not None else None
    except ValueError:
        raise BadInput(f"--steps {steps}: expected a number, 0,3 or 10-20") from None
    opened = open_run(run)
    folder = run if run.is_dir() else run.parent
    written = write_trace(opened, out if out is not None else folder / "trace.json", wanted)
    if as_json:
        typer.echo(json.dumps(written.as_dict()))
        return
    ranks = f"{written.processes} process{'' if written.processes == 1 else 'es'}"
    typer.echo(
        f"{written.slices} slices of {written.rows} calls, {ranks}, {written.bytes / 1e6:.1f} MB: {written.path}"
    )
    if written.without_start:
        typer.echo(f"left out: {written.without_start} calls that say no start, or none that can be")
    if opened.older:
        typer.echo(opened.about_older())
    typer.echo("open it at https://ui.perfetto.dev; it stays on your machine")
