"""How `ditorch config` prints the settings. Imports rich, so only programs import this."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ditorch.configuration import COMMON, Configuration, Finding, text_of

__all__ = ["show"]


def show(found: Configuration, console: Console) -> None:
    """One table for each tool; what was set stands out."""
    for group, findings in groupby(found.findings, key=lambda finding: finding.group):
        console.print(_table("op_tools: all tools" if group == COMMON else group, list(findings)))
    if not found.findings:
        console.print("Every setting is at its default.")


def _table(title: str, findings: list[Finding]) -> Table:
    table = Table(title=title, title_justify="left", width=100)
    in_environment_only = all(finding.name == finding.variable for finding in findings)
    if not in_environment_only:
        table.add_column("setting", no_wrap=True)
    table.add_column("value", overflow="fold", ratio=3)
    table.add_column("from", overflow="fold", ratio=3)
    table.add_column("variable and meaning", overflow="fold", ratio=5)
    for finding in findings:
        # The variable has its own column.
        origin = finding.origin.replace(f" {finding.variable}", "")
        cells = [_text(finding.value), origin, f"{finding.variable}\n{finding.meaning}"]
        if not in_environment_only:
            cells.insert(0, finding.name)
        table.add_row(*map(escape, cells), style="bold" if finding.changed else None, end_section=True)
    return table


def _text(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return text_of(value) or "empty"
