"""The program `dipu`: one command, one file of this folder."""

from __future__ import annotations

import typer

from torch_dipu.commands import coverage, doctor, memory

__all__ = ["app"]

app = typer.Typer(
    help="Look at the PyTorch device 'dipu' and the vendor behind it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.command("doctor")(doctor.doctor)
app.command("memory")(memory.memory)
app.command("coverage", context_settings={"allow_interspersed_args": False})(coverage.coverage)


@app.callback()
def main() -> None:
    """Look at the PyTorch device 'dipu' and the vendor behind it."""
