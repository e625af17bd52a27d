"""The program `dipu`, also as `python -m dipu`.

Its commands are in torch_dipu. They cannot be started from there: importing anything of that package maps the names of
cuda, and fails where its library is broken, which is what `dipu doctor` shall tell.
"""

from __future__ import annotations

import importlib
import sys

__all__ = ["main"]


def main() -> None:
    """Start the program; where torch_dipu cannot be imported say so as `ditorch doctor` does."""
    from _ditorch.adapters.base import importing_framework

    with importing_framework():
        try:
            app = importlib.import_module("torch_dipu.commands").app
        except ImportError:
            from _ditorch.cli import app as ditorch

            ditorch(["doctor", *(word for word in sys.argv[1:] if word == "--json")])
    app(prog_name="dipu")


if __name__ == "__main__":
    main()
