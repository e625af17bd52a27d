"""`op-tools reproduce`: one Python file that shows that a captured call is wrong, for people who have only torch."""

from __future__ import annotations

import importlib
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from op_tools.commands.replay import check_device
from op_tools.reproduce import ReproduceOptions, Reproduction, find_call, surest_calls, write, write_first
from op_tools.reproduce.finding import FIRST
from op_tools.reproduce.write import is_wrong
from op_tools.runs import BadInput, size_option

__all__ = ["reproduce_command"]


def reproduce_command(
    identity: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The folder of a captured call, its number (forward_id), an operator's name (its first wrong call), or "
            "`first`: of the calls that a comparison found wrong the surest one that still fails on the device here.",
        ),
    ],
    run: Annotated[
        str, typer.Option("--run", metavar="DIR", help="The results of a run.")
    ] = "op_tools_results",
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The file to write.")] = Path(
        "repro.py"
    ),
    device: Annotated[
        str,
        typer.Option(help="Also run the call, and then the file, on this device of this machine."),
    ] = "",
    repeat: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="How often the call is run, here and by the file: some faults come and go.",
        ),
    ] = 20,
    imports: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="Import this first: kernels that a program loads."),
    ] = None,
    limit: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Largest file; beyond, rows are cut off or tensors go beside it."),
    ] = "64M",
    force: Annotated[bool, typer.Option("--force", help="Write a file also where nothing is wrong.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Run the file on the CPU, where it must pass.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write one Python file that fails where a captured call is wrong and passes where it is right.

    The file holds the inputs and needs nothing but torch: `python repro.py [--device NAME] [--repeat N]`.

    Exit code 0: written; 1: the captured call is not wrong; 2: it cannot be found or written; 3: internal error.
    """
    if out.suffix != ".py":
        raise BadInput(f"{out} is no name for a Python file. Expected one that ends in .py.")
    _import(imports or ())
    check_device(device, "--device")
    items = surest_calls(run, is_wrong) if identity == FIRST else iter([find_call(identity, run, is_wrong)])
    item = next(items)
    options = ReproduceOptions(
        item,
        out,
        device,
        size_option(limit, "--limit"),
        force,
        verify,
        repeat=repeat,
        imports=tuple(imports or ()),
    )
    made = write_first([item, *items], options) if identity == FIRST else write(options)
    typer.echo(json.dumps(_plain(made)) if as_json else _text(made))


def _import(names: Sequence[str]) -> None:
    """As `python -m` would: modules of the working folder too."""
    sys.path.insert(0, "")
    try:
        for name in names:
            importlib.import_module(name)
    except (ImportError, ValueError) as error:
        raise BadInput(f"--import {name}: {error}.") from error
    finally:
        sys.path.remove("")


def _text(made: Reproduction) -> str:
    lines = [f"passed over: {text}" for text in made.passed_over]
    lines.append(f"{made.path} ({_size(made.nbytes)}): {made.operator}, captured at {made.capture}")
    lines += [f"  {text}" for text in made.wrong[:4]]
    if made.beside is not None:
        lines.append(f"  its tensors did not fit: send {made.beside} along with it, in the same folder")
    if made.cut:
        lines.append(f"  made smaller: {made.cut}")
    if made.on_cpu:
        lines.append("  passes on the CPU of this machine")
    if made.confirmed:
        lines.append(f"  {made.confirmed}")
    if made.on_device is not None:
        what = {0: "passes, so it is not reproduced,", 1: "fails, so it is reproduced,"}.get(
            made.on_device, f"ends with exit code {made.on_device}"
        )
        lines.append(f"  {what} on the device here")
    words = f"python {shlex.quote(str(made.path))} [--device NAME] [--repeat N]"
    lines.append(f"  run: {words}    (exit code 0: right, 1: wrong)")
    return "\n".join(lines)


def _plain(made: Reproduction) -> dict[str, object]:
    return {
        "file": str(made.path),
        "bytes": made.nbytes,
        "operator": made.operator,
        "capture": made.capture,
        "wrong": list(made.wrong),
        "beside": str(made.beside) if made.beside is not None else None,
        "cut": made.cut,
        "passes_on_cpu": made.on_cpu,
        "exit_code_on_device": made.on_device,
        "confirmed": made.confirmed,
        "passed_over": list(made.passed_over),
    }


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 100_000 else f"{nbytes / 1e3:.1f} kB"
