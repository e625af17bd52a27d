"""How `ditorch doctor` prints what it found. Imports rich, so only programs import this."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ditorch.diagnosis import AdapterFinding, Diagnosis
from ditorch.tables import checks_table, devices_table, facts_table, print_problems

__all__ = ["show"]

_COLOURS = {"chosen": "green", "usable": "green", "kept out": "yellow", "broken": "red"}


def show(diagnosis: Diagnosis, console: Console) -> None:
    """Versions, frameworks, the choice, its devices, what works, remarks, problems: in this order."""
    console.print(facts_table("Versions", diagnosis.versions))
    console.print(_adapters_table(diagnosis.adapters))
    if diagnosis.framework:
        console.print(facts_table("Framework", _choice(diagnosis)))
    if diagnosis.devices:
        console.print(devices_table(diagnosis.devices))
    if diagnosis.checks:
        console.print(checks_table(diagnosis.checks))
    for note in diagnosis.notes:
        console.print(f"[yellow]Note:[/] {escape(note)}")
    print_problems(console, diagnosis.problems)


def _choice(diagnosis: Diagnosis) -> dict[str, str]:
    facts = {
        "ditorch.framework": diagnosis.framework,
        "chosen because": diagnosis.reason,
        "names of cuda": diagnosis.mapping,
    }
    if diagnosis.mapping.startswith("on"):
        group = diagnosis.process_group
        facts["process group"] = (
            f"'nccl' means '{group}'" if group else "none: this device has no distributed backend"
        )
    return facts


def _adapters_table(adapters: list[AdapterFinding]) -> Table:
    table = Table(title="Frameworks, the preferred first", title_justify="left")
    table.add_column("device", no_wrap=True)
    table.add_column("package", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("count", justify="right")
    table.add_column("what is missing, and what to do", overflow="fold")
    for adapter in adapters:
        colour = _COLOURS.get(adapter.state)
        state = f"[{colour}]{adapter.state}[/]" if colour else adapter.state
        missing = adapter.missing if adapter.installed else ""
        wanting = "; ".join(text for text in (missing, adapter.advice) if text)
        name = f"[bold]{adapter.name}[/]" if adapter.chosen else adapter.name
        count = str(adapter.devices) if adapter.devices else ""
        table.add_row(name, _package(adapter), state, count, escape(wanting))
    return table


def _package(adapter: AdapterFinding) -> str:
    return escape(f"{adapter.package} {adapter.version}".strip())
