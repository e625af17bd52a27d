"""`diopi adaptor`: are rules right, what do they mean for an operator, what did they cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from diopi.adaptor import AdaptorRules

__all__ = ["program"]

program = typer.Typer(
    no_args_is_help=True,
    help="Rules (convert_config.yaml) in front of a library: check them, see what they cost.",
)


@program.command("check")
def check_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The rules, such as convert_config.yaml.")],
    operator: Annotated[
        list[str] | None,
        typer.Option("--operator", "-o", metavar="NAME", help="Show what the rules mean for this operator."),
    ] = None,
) -> None:
    """Check a file of rules: every mistake with its line, column and what was expected.

    Exit code 0: the rules are right; 2: they are not.
    """
    from dicore.suggestions import closest
    from diopi.adaptor import COMPOSITES, RulesError, read_rules
    from diopi.adaptor.rules import adaptable

    rules = read_rules(file)
    composed = sorted(rules.composites & set(COMPOSITES))
    typer.echo(
        f"{file} is right: rules for {len(rules.operators)} of {len(adaptable())} operators, {len(composed)} may be composed"
    )
    for name in operator or []:
        if name not in adaptable():
            near = closest(name, adaptable(), most=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else "`diopi table` lists them"
            raise RulesError(f"there is no operator {name}; {hint}")
        typer.echo(_meaning(name, rules))


def _meaning(name: str, rules: AdaptorRules) -> str:
    from diopi.adaptor import COMPOSITES
    from diopi.adaptor.rules import tensors_of

    lines = [name]
    for argument, position in tensors_of(name).items():
        rule = rules.operators.get(name, {}).get(position)
        parts = []
        if rule is not None:
            parts += [f"{a} becomes {b}" for a, b in rule.dtypes.items()]
            parts += [f"layout {' or '.join(rule.layouts)}"] if rule.layouts else []
            parts += ["contiguous"] if rule.contiguous else []
        lines.append(f"  {argument:20} {', '.join(parts) or 'as it is'}")
    if name in rules.composites:
        composed = "made of others if the library lacks it"
        meaning = composed if name in COMPOSITES else "no composite of it is known"
        lines.append(f"  {'supportComposite':20} {meaning}")
    return "\n".join(lines)


@program.command("report")
def report_command(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="What DIOPI_ADAPTOR_REPORT=FILE wrote.")
    ],
) -> None:
    """Show what conversions cost, operator by operator, the most expensive first.

    Exit code 0: shown; 2: a file is no such report; 5: nothing was converted.
    """
    from diopi.adaptor import read_costs
    from diopi.adaptor.costs import table

    costs = [cost for file in files for cost in read_costs(file)]
    if not costs:
        typer.echo("no operator was called through an adaptor", err=True)
        raise typer.Exit(5)
    typer.echo(table(costs))
