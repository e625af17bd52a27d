"""`dipu memory snapshot.pickle`: what the device's memory held, as a page."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Annotated, Any

import typer

from dicore.console import make_console
from torch_dipu.memory_page import page

__all__ = ["memory"]


class _PlainData(pickle.Unpickler):
    """A snapshot is lists, dictionaries, texts and numbers: nothing in the file may name a class."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no snapshot does")


def memory(
    snapshot: Annotated[
        Path, typer.Argument(help="A file of torch.dipu.memory._dump_snapshot or torch.cuda's.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The page.")] = Path("memory.html"),
) -> None:
    """Make a page of a memory snapshot: segments, memory over time, the largest holders. Exit code 2: it is none."""
    try:
        with snapshot.open("rb") as file:
            content = _PlainData(file).load()
        made = page(content, snapshot.name)
    except (
        OSError,
        pickle.UnpicklingError,
        EOFError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
    ) as problem:
        typer.echo(
            f"{snapshot} is no memory snapshot ({problem}); expected a file of torch.dipu.memory._dump_snapshot",
            err=True,
        )
        raise typer.Exit(2) from None
    made.write(output)
    make_console().print(f"page: {output}")
