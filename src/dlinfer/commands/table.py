"""`dlinfer table`: what the interface says about an operator, on the console and as docs/dlinfer-operators.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import unwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from dlinfer.interface import OPERATORS
from dlinfer.interface.declaration import Operator

_TITLES = {
    "layers": "Norms, activations and rotary embedding",
    "cache": "Caches",
    "attention": "Attention",
    "sparse": "Sparse attention",
    "matmul": "Linear layers",
    "moe": "Mixtures of experts",
}
_HEAD = """# Operators of dlinfer

Written by `dlinfer table --markdown` from the declarations in `src/dlinfer/interface/`; do not edit it.

These are the operators as torch knows them, `torch.ops.dlinfer.<name>`, and as a vendor's kernels implement them.
`dlinfer.ops.<name>` takes the call forms of the serving frameworks and brings them into this form ([dlinfer](dlinfer.md)).

"Judged" says how `dlinfer conformance` compares a vendor's result with the reference in float64:
exact (bit for bit), elementwise or sum (within what rounding explains), quantised (integers may be the neighbour only at a
tie), positions (others are as good where values tie).
"""


def table_command(
    pattern: Annotated[list[str] | None, typer.Argument(help="Operators: rms_norm, 'paged_*'.")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="All of them as the page docs/dlinfer-operators.md.")
    ] = False,
) -> None:
    """Show declarations of operators: a few in full, many as a list."""
    from dicore.conformance.case_filter import functions_like

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
    lines += [f"  {'declared in':16} {_location(operator.check)}"]
    lines += [f"  {f'kernel of {vendor}':16} {location}" for vendor, location in _kernels(operator.name)]
    return "\n".join(lines)


def _kernels(name: str) -> Iterator[tuple[str, str]]:
    """Which installed vendors serve an operator, and where."""
    from dlinfer.vendors import installed

    for vendor, found in installed().items():
        if found.vendor is not None and name in found.vendor.kernels:
            yield vendor, _location(found.vendor.kernels[name])


def _location(function: Callable[..., Any]) -> str:
    code = getattr(unwrap(function), "__code__", None)
    if code is None:
        return f"compiled, in {function.__module__}"
    path = Path(code.co_filename)
    here = Path(__file__).parents[2]
    shown = path.relative_to(here) if path.is_relative_to(here) else path
    return f"{shown}:{code.co_firstlineno}"


def markdown_page() -> str:
    """The text of the page."""
    parts = [_HEAD]
    for family, title in _TITLES.items():
        parts.append(f"## {title}\n")
        parts += [_section(operator) for operator in OPERATORS.values() if operator.family == family]
    return "\n".join(parts)


def _section(operator: Operator) -> str:
    rows = [f"| `{name}` | {_cell(text)} |" for name, text in operator.shapes.items()]
    written = ", ".join(f"`{name}`" for name in operator.writes) or "nothing"
    lines = [
        f"### {operator.name}",
        "",
        operator.summary,
        "",
        "```text",
        f"{operator.name}{operator.schema}",
        "```",
        "",
        "| argument | meaning |",
        "|---|---|",
        *rows,
        "",
        f"Gives {operator.results}. Writes {written}. Judged: {operator.tolerance}.",
        "",
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
