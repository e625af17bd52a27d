"""`diopi build-published`: DIOPI's own operator library as a vendor."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from diopi.settings import SOURCE

__all__ = ["build_published_command"]


class PublishedDevice(StrEnum):
    """What the published operators compute on."""

    CPU = "cpu"
    CUDA = "cuda"


def build_published_command(
    source: Annotated[
        Path,
        typer.Option(
            metavar="DIR", envvar=SOURCE.name, help="A checkout of DIOPI (impl/, adaptor/, proto/)."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The library to write, such as libpub.so.")],
    device: Annotated[PublishedDevice, typer.Option(help="What it computes on.")] = PublishedDevice.CPU,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=0, help="Compilers at a time; 0: one for each CPU.")
    ] = 0,
) -> None:
    """Compile DIOPI's own impl/torch, unchanged, against these headers and the installed torch.

    The library is a vendor: DIPU_DEVICE=/path/libpub.so. Exit code 0: written; 1: it cannot be built.
    """
    from diopi.vendors.published import PublishedError, build
    from diopi.vendors.published.compilation import reasons

    try:
        built = build(source, out, device.value, jobs=jobs, tell=typer.echo)
    except PublishedError as error:
        typer.echo(f"diopi build-published: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{built.path}: {len(built.functions)} functions")
    for line in reasons():
        typer.echo(f"not compiled: {line}")
    typer.echo(f"so without {', '.join(built.left_out)}")
    typer.echo(
        f"\nNow:\n  DIPU_DEVICE={built.path} dipu doctor\n  diopi conformance --library {built.path} --quick"
    )
