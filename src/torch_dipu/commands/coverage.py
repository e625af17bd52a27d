"""`dipu coverage script.py`: runs a program and says which operators fell back, and what that cost."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dicore.console import make_console, make_table
from dicore.files import write_text
from dicore.main_module import (
    CannotRun,
    Program,
    exit_code_of,
    expect_module,
    prepare_module,
    prepare_script,
    without_our_frames,
)
from torch_dipu.coverage import Coverage

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["coverage"]

_MEGABYTE = 1e6


def coverage(
    script: Annotated[str, typer.Argument(help="The program, a Python script.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What the program is given.")] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, run as `python -m` does.")] = False,
    mapping: Annotated[bool, typer.Option("--ditorch/--no-ditorch", help="Map the names of cuda.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    rows: Annotated[int, typer.Option(min=0, help="How many operators that fell back are shown.")] = 20,
    at_least: Annotated[
        float | None,
        typer.Option(help="Exit with 1 if fewer per cent of the calls went to DIOPI."),
    ] = None,
) -> None:
    """Run a program on the device and show how many of its operator calls went to the vendor's DIOPI functions.

    Options come before the script. Exit code: the program's own if it failed; 1 if --at-least is not met; 2: the
    program was not run, because an option, the script or the vendor cannot be used.
    """
    if at_least is not None and not 0 <= at_least <= 100:
        raise _refused(f"--at-least {at_least:g}: expected a percentage from 0 to 100")
    _check_writable(json_file)
    console = make_console()
    try:
        prepare = _prepare(script, arguments or [], module)
    except CannotRun as problem:
        raise _refused(str(problem)) from None
    except SyntaxError as error:
        sys.excepthook(type(error), error, None)
        raise _refused(f"{script} is not a Python program; it was not run") from None
    _check_vendor()
    _start_mapping(mapping)
    with Coverage() as found:
        code = _run(prepare, arguments or [])
    if json_file is not None:
        write_text(json_file, json.dumps({"exit_code": code, **found.as_dict()}, indent=2))
    _print(found, rows, code, console)
    missed = code == 0 and at_least is not None and found.share * 100 < at_least
    if missed:
        console.print(
            f"[red]{found.share:.1%} of the calls went to DIOPI; expected at least {at_least:g} %[/red]"
        )
    raise typer.Exit(code or int(missed))


def _refused(problem: str) -> typer.Exit:
    typer.echo(f"dipu coverage: {problem}", err=True)
    return typer.Exit(2)


def _check_writable(path: Path | None) -> None:
    """Before a long run, not after it."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise _refused(f"--json {path}: this cannot be written; give a file in a folder that exists")


def _check_vendor() -> None:
    """A program that finds no device would fail somewhere inside, with no word of the vendor."""
    import torch_dipu

    try:
        torch_dipu.dipu.vendor()
    except RuntimeError as error:
        raise _refused(f"there is no device to run on: {error}\n`dipu doctor` says more") from None


def _prepare(target: str, arguments: list[str], module: bool) -> Callable[[], Program]:
    """A script is read now. A module is only looked for: the packages it is in are part of the program."""
    if module:
        expect_module(target, arguments)
        return functools.partial(prepare_module, target)
    program = prepare_script(target)
    return lambda: program


def _start_mapping(wanted: bool) -> None:
    """The names of cuda lead to this device, whatever else the machine has; or they stay, whatever the program imports."""
    from _ditorch.selection import choose
    from _ditorch.session import of_process

    session = of_process()
    session.held = not wanted
    if not wanted:
        return
    try:
        session.start(choose(environment={**os.environ, "DITORCH_DEVICE": "dipu"}), quiet=True)
    except (ImportError, ValueError) as error:
        raise _refused(f"{error} To run without the mapping, give --no-ditorch.") from None


def _run(prepare: Callable[[], Program], arguments: list[str]) -> int:
    """The program's exit code; what it raises is shown as the interpreter would."""
    beginning = prepare_module.__code__
    try:
        program = prepare()
        beginning = program.code
        program.run(arguments)
    except CannotRun as problem:
        raise _refused(str(problem)) from None
    except SystemExit as end:
        return exit_code_of(end)
    except Exception as error:
        without_our_frames(error, beginning)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _print(found: Coverage, rows: int, code: int, console: Console) -> None:
    data = found.as_dict()
    if code:
        ran = "the figures are of what ran before" if found.calls else "no operator had run on the device"
        console.print(f"[red]the program ended with exit code {code}; {ran}[/red]")
    if not found.calls:
        if not code:
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
    table = make_table(title="operators that fell back")
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
