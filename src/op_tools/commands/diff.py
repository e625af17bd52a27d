"""`op-tools diff`: which call of two runs of one program is wrong first."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dicore.console import progress_bar

if TYPE_CHECKING:
    from op_tools.diff.report import Rows

__all__ = ["diff_command"]

_MOST_WORKERS = 4
_MANY_CALLS = 6000


def diff_command(
    a: Annotated[Path, typer.Argument(metavar="A", help="Results folder of the first run.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Results folder of the second run.")],
    layers: Annotated[bool, typer.Option("--layers", help="Compare modules recorded with OpLayers.")] = False,
    first: Annotated[bool, typer.Option("--first", help="Stop at the first wrong call.")] = False,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Processes that judge; default: one per CPU, at most 4. 0: in this one."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Judge on a Ray cluster: its address, auto or local."),
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", metavar="PKG", help="Also run functions of this package.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Results folder for the rows (op_diff_info); default: that of B.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Compare two runs of one program: the first wrong call, in which run, and where it stands in the source.

    Every captured call of both runs is computed again on the CPU from its own captured inputs, so a call is not blamed
    for what it was given. Without captures, logs of autocompare or observe are compared and calls are only suspected.

    Exit code 0: no difference but rounding; 1: wrong, suspect or missing calls; 2: bad input; 3: internal error; 5: nothing
    was compared, or a capture could not be read; 130: interrupted.
    """
    if layers:
        raise typer.Exit(_layers(a, b, as_json))
    from op_tools.diff.printing import headline, next_step, text_of
    from op_tools.diff.report import Rows

    folder = out or (b if b.is_dir() else b.parent)
    rows = Rows(folder)
    with progress_bar("judging", quiet=as_json) as bar:
        try:
            report = _compared(a, b, workers, ray, tuple(allow or ()), first, rows, bar.update)
        except BaseException:
            rows.discard()
            raise
    written = _written(rows, folder)
    if as_json:
        document = {**report.as_dict(), "headline": headline(report), "next": next_step(report)}
        typer.echo(json.dumps(_finite(document), indent=2, default=str))
    else:
        typer.echo(text_of(report))
        if written:
            typer.echo(f"\nrows saved to {written}")
    raise typer.Exit(report.exit_code)


def _layers(a: Path, b: Path, as_json: bool) -> int:
    from op_tools.diff.layers import compare_layers, print_layers
    from op_tools.runs import open_run

    report = compare_layers(open_run(a), open_run(b))
    typer.echo(
        json.dumps(_finite(report.as_dict()), indent=2, default=str) if as_json else print_layers(report)
    )
    return int(report.exit_code)


def _compared(
    a: Path,
    b: Path,
    workers: int | None,
    ray: str | None,
    allow: tuple[str, ...],
    only_first: bool,
    rows: Rows,
    progress: Callable[[int, int], None] | None,
) -> Any:
    from op_tools.diff.compare import compare_captures, open_either
    from op_tools.diff.suspects import compare_logs

    (run_a, calls_a), (run_b, calls_b) = open_either(a), open_either(b)
    if not calls_a.count or not calls_b.count:
        counts = (calls_a.count, calls_b.count)
        return compare_logs((a, b), (run_a, run_b), counts, rows=rows, progress=progress)
    if workers is None:
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        # A process takes seconds to start; a few thousand calls are judged sooner than that.
        workers = min(cpus, _MOST_WORKERS) if ray or calls_a.count + calls_b.count > _MANY_CALLS else 0
    report = compare_captures(
        (a, b),
        calls_a,
        calls_b,
        workers=workers,
        ray=ray,
        allow=allow,
        only_first=only_first,
        progress=progress,
    )
    rows.add(report.entries)
    return report


def _written(rows: Rows, folder: Path) -> str:
    try:
        return rows.close()
    except OSError as error:  # a read-only run can be compared all the same
        typer.echo(
            f"op-tools: the rows could not be written to {folder}: {error}; --out gives another folder",
            err=True,
        )
        return ""


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinities: as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
