"""The program `ditorch`.

`ditorch run` goes its own way: it must not import a command-line library into the process of the user's program.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["app"]


def app(words: Sequence[str] | None = None) -> None:
    """Do what the words of the command line say."""
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["run"]:
        from _ditorch.run import main

        main(words[1:])
    from _ditorch.program import program

    program(list(words), prog_name="ditorch")
