"""`dipu coverage script.py`: runs a program and says which operators fell back, and what that cost."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ditorch.main_module import CannotRun, Prepared, prepare_script, without_our_frames
from ditorch.tables import make_console
from torch_dipu.coverage import Coverage

__all__ = ["coverage"]

_MEGABYTE = 1e6


def coverage(
    script: Annotated[str, typer.Argument(help="The program, a Python script.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What the program is given.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    rows: Annotated[int, typer.Option(help="How many operators that fell back are shown.")] = 20,
    at_least: Annotated[
        float | None, typer.Option(help="Exit with 1 if fewer per cent of the calls went to DIOPI.")
    ] = None,
) -> None:
    """Run a program on the device and show how many of its operator calls went to the vendor's DIOPI functions.

    Options come before the script. Exit code: the program's own; 1 if --at-least is not met; 2: nothing to run.
    """
    console = make_console()
    try:
        prepared = prepare_script(script)
    except CannotRun as problem:
        typer.echo(f"dipu coverage: {problem}", err=True)
        raise typer.Exit(2) from None
    import torch_dipu  # noqa: F401  (registers the device, if nothing has)

    with Coverage() as found:
        code = _run(prepared, arguments or [])
    if json_file is not None:
        json_file.write_text(json.dumps(found.as_dict(), indent=2), encoding="utf-8")
    _print(found, rows, console)
    missed = at_least is not None and found.share * 100 < at_least
    if missed:
        console.print(
            f"[red]{found.share:.1%} of the calls went to DIOPI; expected at least {at_least:g} %[/red]"
        )
    raise typer.Exit(code or int(missed))


def _run(prepared: Prepared, arguments: list[str]) -> int:
    """The program's exit code; what it raises is shown as the interpreter would."""
    try:
        prepared.run(arguments)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:
        without_our_frames(error, prepared.code)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _print(found: Coverage, rows: int, console: Console) -> None:
    data = found.as_dict()
    if not found.calls:
        console.print("no operator ran on the device: does the program use `cuda` or `dipu`?")
        return
    console.print(
        f"{found.calls:,} operator calls: {found.share:.1%} by DIOPI, {data['alias_calls'] / found.calls:.1%} by alias, "
        f"{data['copy_calls'] / found.calls:.1%} by copies ({data['copied_bytes'] / _MEGABYTE:,.1f} MB copied)"
    )
    console.print(
        f"{found.seconds:.3f} s in operators, {found.fallback_seconds:.3f} s of it in calls that fell back"
    )
    fallen = [o for o in found.operators if o.fallback_calls]
    if not fallen:
        return
    table = Table(title="operators that fell back")
    for column in ("calls", "by DIOPI", "ms", "MB"):
        table.add_column(column, justify="right")
    table.add_column("operator")
    table.add_column("reason")
    for operator in fallen[:rows]:
        table.add_row(
            f"{operator.fallback_calls:,}",
            f"{operator.diopi_calls:,}",
            f"{operator.fallback_seconds * 1e3:.2f}",
            f"{operator.copied_bytes / _MEGABYTE:.1f}",
            operator.name.removeprefix("aten::"),
            operator.reason,
        )
    console.print(table)
    if len(fallen) > rows:
        console.print(f"and {len(fallen) - rows} more; --rows shows them, --json writes all")
