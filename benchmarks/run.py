"""Run a benchmark by its name: `python benchmarks/run.py device_overhead --json out.json`.

A benchmark is a file beside this one with `def measure(options: Options) -> Report`; its name is the file's
name. Adding one edits no other file.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from report import Options, Report, write_json

HERE = Path(__file__).resolve().parent


def benchmarks() -> dict[str, str]:
    """Name and first docstring line of every file here that defines `measure`; none of them is imported."""
    found: dict[str, str] = {}
    for path in sorted(HERE.glob("*.py")):
        tree = ast.parse(path.read_text())
        if any(isinstance(node, ast.FunctionDef) and node.name == "measure" for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def run(
    name: Annotated[str | None, typer.Argument(help="the benchmark; without it, the list")] = None,
    json: Annotated[Path | None, typer.Option(help="write every raw figure to this file")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="fewer rounds: a smoke test, not a figure")] = False,
    check: Annotated[bool, typer.Option("--check", help="exit with 1 when a target is missed")] = False,
    device: Annotated[str, typer.Option(help="the device that is compared with the CPU")] = "dipu",
    only: Annotated[
        str, typer.Option(help="parts and rows of a benchmark that has several, with commas")
    ] = "",
    threads: Annotated[int | None, typer.Option(help="threads, for a benchmark that asks")] = None,
    dtype: Annotated[str | None, typer.Option(help="dtype, for a benchmark that asks")] = None,
) -> None:
    """Run one benchmark, print its table and store its figures."""
    console = Console(width=min(Console().width, 120) if Console().is_terminal else 120)
    known = benchmarks()
    if name is None:
        for known_name, what in known.items():
            console.print(f"[bold]{known_name}[/]  {what}")
        return
    if name not in known:
        raise typer.BadParameter(f"there is no benchmark {name!r}; there are: {', '.join(known)}")
    # Before torch is imported: one thread, or the figures say more about the scheduler than about the device.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chosen = tuple(word.strip() for word in only.split(",") if word.strip())
    options = Options(quick, device, chosen, threads, dtype, lambda line: console.print(f"[dim]{line}[/]"))
    report: Report = importlib.import_module(name).measure(options)
    report.print(console)
    if json is not None:
        write_json(json, report.as_json(name))
        console.print(f"figures: {json}")
    if check and report.missed:
        console.print(f"[red]missed:[/] {', '.join(report.missed)}")
        raise typer.Exit(1)


def main(arguments: list[str] | None = None) -> None:
    sys.path.insert(0, str(HERE))
    app = typer.Typer(add_completion=False)
    app.command()(run)
    app(arguments)


if __name__ == "__main__":
    main()
