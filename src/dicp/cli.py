"""The program `dicp`. Imports its libraries, so only programs import this."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from dicore.console import run_program
from dicp.commands.doctor import doctor_command
from dicp.commands.explain import explain_command
from dicp.conformance.command import program as conformance
from dicp.errors import DicpError

app = typer.Typer(
    help="Backends of torch.compile: what they make of a function, whether they are right, what is installed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("doctor")(doctor_command)
app.command("explain")(explain_command)
app.add_typer(conformance, name="conformance")


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    run_program("dicp", app, arguments, (DicpError,))
