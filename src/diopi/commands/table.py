"""`diopi table`: what the operator table says about a function."""

from __future__ import annotations

from typing import Annotated

import typer

from diopi.table import Entry, OperatorTable, load

__all__ = ["table_command"]


def table_command(
    pattern: Annotated[
        list[str] | None,
        typer.Argument(help="Functions: diopiAdd, 'diopiConv*'; or ATen names: add.Tensor, aten::mm, add."),
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
        typer.echo("\n\n".join(_full(entry, table) for entry in found))
        return
    for entry in found:
        typer.echo(
            f"{entry.name:44} {entry.category:12} {' '.join(entry.dtypes):22} {', '.join(entry.aten[:3])}"
        )
    typer.echo(f"{len(found)} entries; `diopi table NAME` shows one in full")


def _found(table: OperatorTable, patterns: list[str]) -> list[Entry]:
    from dicore.conformance.case_filter import SelectionError, functions_like

    names: set[str] = set()
    for pattern in patterns:
        names |= _serving(table, pattern) or functions_like([pattern], table.functions)
    missing = sorted(names - set(table.entries))
    if len(missing) == len(names) and names:
        raise SelectionError(f"no entry yet for {', '.join(missing[:5])}; the C interface has it")
    return [entry for name, entry in table.entries.items() if name in names]


def _serving(table: OperatorTable, name: str) -> set[str]:
    """The functions that serve an ATen overload (add.Tensor) or any overload of an ATen operator (aten::add, add)."""
    from dicore.conformance.case_filter import SelectionError
    from dicore.suggestions import closest

    by_overload = table.by_overload()
    bare = (
        name.removeprefix("torch.ops.").removeprefix("aten::").removeprefix("aten.").removesuffix(".default")
    )
    fits = [bare] if bare in by_overload else [o for o in by_overload if o.partition(".")[0] == bare]
    if not fits and bare != name:
        near = closest(bare, by_overload, most=3, cutoff=0.5)
        hint = f"; near are {', '.join(near)}" if near else ""
        raise SelectionError(f"no function serves the ATen operator {bare!r}{hint}")
    return {entry.name for overload in fits for entry in by_overload[overload]}


def _full(entry: Entry, table: OperatorTable) -> str:
    lines = [entry.function.declaration, f"  header      {entry.function.header} (entry in {entry.source})"]
    facts = {
        "category": entry.category,
        "dtypes": " ".join(entry.dtypes),
        "tolerance": entry.tolerance,
        "reference": entry.reference,
        "note": entry.note,
    }
    lines += [f"  {name:11} {value}" for name, value in facts.items() if value]
    roles = [f"{a.name}: {entry.role(a)}" for a in entry.function.arguments if entry.role(a) is not None]
    return "\n".join([*lines, f"  tensors     {', '.join(roles)}", *_mapping(entry, table)])


def _mapping(entry: Entry, table: OperatorTable) -> list[str]:
    """The overloads that it serves, when, and where its arguments come from; those that are served alike together."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for overload, serving in table.by_overload().items():
        for each in serving:
            if each.name == entry.name:
                groups.setdefault(_conditions(each), []).append(overload)
    if not groups:
        return ["  ATen        none"]
    lines = []
    for conditions, overloads in groups.items():
        lines += [f"  ATen        {', '.join(overloads)}", *(f"    {line}" for line in conditions)]
    return [*lines, "    (other arguments have the same name in ATen; input may be called self there)"]


def _conditions(entry: Entry) -> tuple[str, ...]:
    lines = [f"if        {entry.when}"] if entry.when else []
    lines += [f"if        {entry.scalar} is a number"] if entry.scalar else []
    return (*lines, *(f"{name:9} = {text}" for name, text in entry.args.items()))
