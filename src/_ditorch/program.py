"""The commands of the program `ditorch`, but for what `ditorch run` does. Imports its libraries, so only programs import this."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from _ditorch.diagnosis import diagnose
from dicore.console import make_console

__all__ = ["program"]

program = typer.Typer(
    help="Run PyTorch programs written for CUDA on another device.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


@program.callback()
def main() -> None:
    """Run PyTorch programs written for CUDA on another device."""


@program.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Show versions, the chosen framework and its devices, try the device, and say what to do.

    Exit code 0: all fine; 1: something does not work.
    """
    raise typer.Exit(diagnose().report(as_json=as_json))


@program.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
def run(words: Annotated[list[str], typer.Argument(metavar="[OPTIONS] SCRIPT [ARGUMENTS]...")]) -> None:
    """Run a script or a module unchanged, with the operator tools on; see `ditorch run --help`."""
    from _ditorch.run import main as run_program

    run_program(words)


@program.command(name="torch-tests", add_help_option=False, context_settings={"ignore_unknown_options": True})
def torch_tests(words: Annotated[list[str] | None, typer.Argument(metavar="[OPTIONS]")] = None) -> None:
    """Say how well PyTorch's own tests pass on a device; see `ditorch torch-tests --help`."""
    from _ditorch.torch_tests.command import program as run_tests

    run_tests(words or [], prog_name="ditorch torch-tests")


@program.command()
def config(
    as_json: Annotated[bool, typer.Option("--json", help="Print the settings as JSON.")] = False,
    tool: Annotated[
        str | None, typer.Option(help="Only the settings of one tool, package or vendor, such as dlinfer.")
    ] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not at its default.")] = False,
    example: Annotated[
        bool, typer.Option("--example", help="Print a ditorch.toml with every setting at its default.")
    ] = False,
) -> None:
    """Show every setting: its value, where that came from, its variable and what it means.

    Exit code 0: all can be used; 2: something in the file or the environment cannot, and is listed.
    """
    from _ditorch import configuration

    if example:
        typer.echo(configuration.example(), nl=False)
        return
    try:
        found = configuration.read_all().narrowed(tool, changed)
    except configuration.UnknownGroup as error:
        typer.echo(f"ditorch config: {error}", err=True)
        raise typer.Exit(2) from error
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
    else:
        configuration.show(found, make_console())
    for problem in found.problems:
        typer.echo(f"ditorch config: {problem}", err=True)
    for warning in found.warnings:
        typer.echo(f"ditorch config: warning: {warning}", err=True)
    raise typer.Exit(2 if found.problems else 0)
