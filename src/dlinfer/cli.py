"""The program `dlinfer`. Imports its libraries, so only programs import this."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from dicore.conformance.case_filter import SelectionError
from dicore.console import run_program
from dlinfer.commands.conformance import program as conformance
from dlinfer.commands.doctor import doctor_command
from dlinfer.commands.serve import serve_command
from dlinfer.commands.table import table_command
from dlinfer.errors import RuleError, VendorError

app = typer.Typer(
    help="Fused operators for serving large language models: are kernels right, who serves what, what is an operator.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(conformance, name="conformance")
app.command("doctor")(doctor_command)
app.command("table")(table_command)
app.command("serve", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    serve_command
)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    run_program("dlinfer", app, arguments, (SelectionError, VendorError, RuleError))
