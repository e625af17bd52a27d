"""How the doctors of this house print what they found. Imports rich, so only programs import this."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ditorch.checks import CheckResult
from ditorch.diagnosis import DeviceFinding, Problem

__all__ = ["checks_table", "devices_table", "facts_table", "make_console", "print_problems"]

_WIDTH_OF_FILES = 100


def make_console() -> Console:
    """A terminal's own width; 100 columns in a file or a pipe, where rich would take 80."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES, highlight=False)


def facts_table(title: str, facts: dict[str, str]) -> Table:
    """Two columns, name and value."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(escape(name), escape(value))
    return table


def devices_table(devices: list[DeviceFinding]) -> Table:
    table = Table("device", "name", "memory", "free", title="Devices", title_justify="left")
    for device in devices:
        table.add_row(
            device.device, escape(device.name), _size(device.total_memory), _size(device.free_memory)
        )
    return table


def checks_table(checks: list[CheckResult]) -> Table:
    table = Table("check", "result", "time", title="What works", title_justify="left")
    table.add_column("reason", overflow="fold")
    for check in checks:
        result = "[green]ok[/]" if check.ok else "[red]failed[/]"
        table.add_row(check.name, result, f"{check.seconds * 1e3:.1f} ms", escape(check.reason))
    return table


def print_problems(console: Console, problems: list[Problem]) -> None:
    """The last word: all fine, or each problem with what to do about it."""
    if not problems:
        console.print("[green]All fine.[/]")
    for problem in problems:
        console.print(f"[red]Problem:[/] {escape(problem.what)}")
        if problem.advice:
            console.print(f"  To do: {escape(problem.advice)}")


def _size(size: int | None) -> str:
    return "" if size is None else f"{size / 2**30:.1f} GiB"
