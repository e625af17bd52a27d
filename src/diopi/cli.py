"""The program `diopi`. Imports its libraries, so only programs import this."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from dicore.conformance.case_filter import SelectionError
from dicore.console import run_program
from diopi.commands.adaptor import program as adaptor
from diopi.commands.build_published import build_published_command
from diopi.commands.conformance import program as conformance
from diopi.commands.new_vendor import new_vendor_command
from diopi.commands.table import table_command
from diopi.library import LibraryError
from diopi.table import TableError
from diopi.vendors import VendorError

__all__ = ["app", "main"]

app = typer.Typer(
    help="The operator interface DIOPI: is a vendor's library right, what does the table say.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(conformance, name="conformance")
app.add_typer(adaptor, name="adaptor")
app.command("build-published")(build_published_command)
app.command("new-vendor")(new_vendor_command)
app.command("table")(table_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    run_program("diopi", app, arguments, (SelectionError, LibraryError, VendorError, TableError))
