"""`diopi new-vendor`: the project of a new chip, ready to build and to run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["new_vendor_command"]


def new_vendor_command(
    name: Annotated[str, typer.Argument(help="The vendor: letters, digits, underscores, such as mychip.")],
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write, new or empty. Default: ./NAME.")
    ] = None,
) -> None:
    """Write the project of a new vendor: a runtime, three operators, tests; it runs PyTorch on the first day.

    Exit code 0: written; 2: the name or the folder cannot be used.
    """
    from diopi.new_vendor import OPERATORS, NewVendorError, write_project

    target = Path(name) if folder is None else folder
    try:
        written = write_project(name, target)
    except NewVendorError as error:
        typer.echo(f"diopi new-vendor: {error}", err=True)
        raise typer.Exit(2) from None
    for path in written:
        typer.echo(f"  {path}")
    typer.echo(f"""
Now:
  cd {target}
  pip install --no-build-isolation .   # needs scikit-build-core, cmake, ninja and a C++ compiler
  DIPU_DEVICE={name} dipu doctor
  DIPU_DEVICE={name} python examples/train_cnn.py
  diopi conformance --vendor {name} --functions {",".join(OPERATORS)}""")
