"""`dlinfer table`: what the interface says about an operator."""

from __future__ import annotations

from typing import Annotated

import typer

from dlinfer.interface.declaration import Operator

__all__ = ["table_command"]


def table_command(
    pattern: Annotated[list[str] | None, typer.Argument(help="Operators: rms_norm, 'paged_*'.")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="All of them as the page docs/dlinfer-operators.md.")
    ] = False,
) -> None:
    """Show declarations of operators: a few in full, many as a list."""
    from diopi.conformance.selection import functions_like
    from dlinfer.interface import OPERATORS
    from dlinfer.interface.page import markdown_page

    if markdown:
        typer.echo(markdown_page(), nl=False)
        return
    names = functions_like(pattern or ["*"], OPERATORS)
    found = [operator for name, operator in OPERATORS.items() if name in names]
    if len(found) <= 3:
        typer.echo("\n\n".join(_full(operator) for operator in found))
        return
    for operator in found:
        typer.echo(f"{operator.name:34} {operator.family:11} {operator.tolerance:12} {operator.summary[:60]}")
    typer.echo(f"{len(found)} operators; `dlinfer table NAME` shows one in full")


def _full(operator: Operator) -> str:
    lines = [f"{operator.name}{operator.schema}", f"  {operator.summary}"]
    lines += [f"  {name:16} {text}" for name, text in operator.shapes.items()]
    lines += [f"  {'gives':16} {operator.results}", f"  {'judged':16} {operator.tolerance}"]
    return "\n".join(lines)
