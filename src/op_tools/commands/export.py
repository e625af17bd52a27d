"""`op-tools export`: make captures whose tensors lie in a common store complete in themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from op_tools.runs import BadInput
from op_tools.storage import CaptureError, export

__all__ = ["export_command"]


def export_command(
    source: Annotated[Path, typer.Argument(help="A tree of captures.")],
    target: Annotated[Path, typer.Argument(help="A folder to write complete files to.")],
) -> None:
    """Copy a tree of captures so that every .pth can be read alone, with plain torch.load.

    Exit code 0: all copied; 1: a capture cannot be read; 2: wrong usage; 5: nothing to copy.
    """
    if not source.exists():
        raise typer.BadParameter(f"{source} does not exist", param_hint="SOURCE")
    try:
        count = export(source, target)
    except CaptureError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    except OSError as error:
        raise BadInput(
            f"{error.filename or target} cannot be written: {error.strerror or error}. Give another folder, or free some space."
        ) from error
    typer.echo(f"{count} files written to {target}")
    raise typer.Exit(0 if count else 5)
