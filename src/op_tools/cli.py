"""The program `op-tools`. Imports its libraries, so only programs import this."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import typer

from op_tools.commands.export import export_command
from op_tools.commands.replay import normalised, replay_command

__all__ = ["app", "main", "run"]

app = typer.Typer(
    help="Work with what the operator tools captured and measured.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("replay")(replay_command)
app.command("export")(export_command)


@app.callback()
def _program() -> None:
    """Work with what the operator tools captured and measured."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    run(app, arguments)


def run(program: Callable[..., object], arguments: Sequence[str] | None = None) -> None:
    """Run a typer program with the exit codes of this house: 3 for our own errors, 130 for Ctrl-C."""
    words = normalised(sys.argv[1:] if arguments is None else arguments)
    try:
        program(args=words)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception:
        import traceback

        traceback.print_exc()
        print("op-tools: this is an error of the tool, not of the captures", file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    main()
