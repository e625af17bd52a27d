"""`diopi table`: what the operator table says about a function."""

from __future__ import annotations

from typing import Annotated

import typer

from diopi.table import Entry, Table, load

__all__ = ["table_command"]


def table_command(
    pattern: Annotated[
        list[str] | None,
        typer.Argument(help="Functions: diopiAdd, 'diopiConv*', or an ATen overload: add.Tensor."),
    ] = None,
    category: Annotated[str | None, typer.Option(help="Only entries of this category.")] = None,
) -> None:
    """Show entries of the operator table: one in full, several as a list."""
    table = load()
    found = _found(table, pattern or ["*"])
    if category is not None:
        found = [entry for entry in found if entry.category == category]
    if not found:
        typer.echo("no entry fits", err=True)
        raise typer.Exit(5)
    if len(found) <= 3:
        typer.echo("\n\n".join(_full(entry) for entry in found))
        return
    for entry in found:
        typer.echo(
            f"{entry.name:44} {entry.category:12} {' '.join(entry.dtypes):22} {', '.join(entry.aten[:3])}"
        )
    typer.echo(f"{len(found)} entries; `diopi table NAME` shows one in full")


def _found(table: Table, patterns: list[str]) -> list[Entry]:
    from diopi.conformance.selection import SelectionError, functions_like

    by_overload = table.by_overload()
    names: set[str] = set()
    for pattern in patterns:
        if pattern in by_overload:
            names |= {entry.name for entry in by_overload[pattern]}
            continue
        names |= functions_like([pattern], table.functions)
    missing = sorted(names - set(table.entries))
    if len(missing) == len(names) and names:
        raise SelectionError(f"no entry yet for {', '.join(missing[:5])}; the C interface has it")
    return [entry for name, entry in table.entries.items() if name in names]


def _full(entry: Entry) -> str:
    lines = [entry.function.declaration, f"  header      {entry.function.header} (entry in {entry.source})"]
    facts = {
        "ATen": ", ".join(entry.aten) or "none",
        "category": entry.category,
        "dtypes": " ".join(entry.dtypes),
        "tolerance": entry.tolerance,
        "served if": entry.when,
        "reference": entry.reference,
        "note": entry.note,
    }
    lines += [f"  {name:11} {value}" for name, value in facts.items() if value]
    lines += [f"  {name} = {text}" for name, text in entry.args.items()]
    roles = [f"{a.name}: {entry.role(a)}" for a in entry.function.arguments if entry.role(a) is not None]
    return "\n".join([*lines, f"  tensors     {', '.join(roles)}"])
