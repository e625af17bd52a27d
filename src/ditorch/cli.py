"""The program `ditorch`.

`ditorch run` goes its own way: it must not import a command-line library into the process of the user's program.
"""

from __future__ import annotations

import sys

__all__ = ["app"]


def app(prog_name: str = "ditorch") -> None:
    """Read the words of the command line and do what they say."""
    if sys.argv[1:2] == ["run"]:
        from ditorch.run import main

        main()
    from ditorch.program import program

    program(prog_name=prog_name)


if __name__ == "__main__":
    app()
