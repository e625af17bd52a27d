"""`python -m op_tools.run_op_from_data DIR ...`: the promised name of `op-tools replay`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run captured operators again; see --help."""
    import typer

    from op_tools.cli import run
    from op_tools.commands.replay import replay_command

    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(replay_command)
    words = sys.argv[1:] if arguments is None else arguments
    run(program, ["--documented", *words])


if __name__ == "__main__":
    main()
