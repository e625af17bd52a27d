"""The program `ditorch`."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ditorch.diagnosis import AdapterFinding, Diagnosis, diagnose
from ditorch.tables import checks_table, devices_table, facts_table, make_console, print_problems

__all__ = ["app"]

app = typer.Typer(
    help="Run PyTorch programs written for CUDA on another device.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


@app.callback()
def main() -> None:
    """Run PyTorch programs written for CUDA on another device."""


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Show versions, the chosen framework and its devices, try the device, and say what to do.

    Exit code 0: all fine; 1: something does not work.
    """
    diagnosis = diagnose()
    if as_json:
        typer.echo(json.dumps(diagnosis.as_dict(), indent=2))
    else:
        _print(diagnosis, make_console())
    raise typer.Exit(0 if diagnosis.ok else 1)


def _print(diagnosis: Diagnosis, console: Console) -> None:
    console.print(facts_table("Versions", diagnosis.versions))
    console.print(_adapters_table(diagnosis.adapters))
    if diagnosis.framework:
        facts = {
            "ditorch.framework": diagnosis.framework,
            "chosen because": diagnosis.reason,
            "names of cuda": diagnosis.mapping,
        }
        console.print(facts_table("Framework", facts))
    if diagnosis.devices:
        console.print(devices_table(diagnosis.devices))
    if diagnosis.checks:
        console.print(checks_table(diagnosis.checks))
    print_problems(console, diagnosis.problems)


def _adapters_table(adapters: list[AdapterFinding]) -> Table:
    table = Table("", "adapter", "package", "devices", title="Frameworks", title_justify="left")
    table.add_column("what is missing", overflow="fold")
    for adapter in adapters:
        missing = "; ".join(text for text in (adapter.missing, adapter.advice) if text)
        mark = "[green]*[/]" if adapter.chosen else ""
        table.add_row(mark, adapter.name, adapter.package, str(adapter.devices), escape(missing))
    return table


if __name__ == "__main__":
    app()
