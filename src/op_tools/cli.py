"""The program `op-tools`. Imports its libraries, so only programs import this."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import typer

from op_tools.commands.bisect import bisect_command
from op_tools.commands.check import check_command
from op_tools.commands.diff import diff_command
from op_tools.commands.export import export_command
from op_tools.commands.replay import normalised, replay_command
from op_tools.commands.report import report_command
from op_tools.commands.reproduce import reproduce_command
from op_tools.commands.trace import trace_command
from op_tools.runs import BadInput

__all__ = ["app", "main", "run"]

app = typer.Typer(
    help="Work with what the operator tools captured and measured.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _name, _command in (
    ("replay", replay_command),
    ("diff", diff_command),
    ("reproduce", reproduce_command),
    ("report", report_command),
    ("trace", trace_command),
    ("check", check_command),
    ("export", export_command),
):
    app.command(_name)(_command)
# What follows the script belongs to the script, options included.
app.command("bisect", context_settings={"allow_interspersed_args": False})(bisect_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    run(app, arguments)


def run(program: Callable[..., object], arguments: Sequence[str] | None = None) -> None:
    """Run a typer program with the exit codes of this house: 3 for our own errors, 130 for Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] != ["bisect"]:  # whose words may be the script's
        words = normalised(words)
    try:
        program(args=words)
    except BadInput as error:
        print(f"op-tools: {error}", file=sys.stderr)
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception:
        import traceback

        traceback.print_exc()
        print("op-tools: this is an error of the tool, not of the captures", file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    main()
