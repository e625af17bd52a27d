"""The code of a graph of the builder's operators: its C++ program, in a Python module that runs it."""

from __future__ import annotations

from torch.fx import GraphModule

from dicp.vendor.TopsGraph.codegen.builder_source import BuilderSource

__all__ = ["EnflameCodegen"]

_MODULE = """\
from dicp.vendor.TopsGraph.config import BACKEND
from dicp.vendor.TopsGraph.codegen.program import SourceProgram

program = SourceProgram({source!r})
program.check()
run = BACKEND.runner_of(program)


def call(arguments):
    given = list(arguments)
    arguments.clear()
    return list(run(*given))
"""


class EnflameCodegen:
    """Writes the code of one graph."""

    def __init__(self, gm: GraphModule, cpu_gm: GraphModule, folder: str, graph_key: str) -> None:
        self.gm = gm

    def codegen(self) -> str:
        """A module whose `call` runs the program by the vendor's SDK, or interprets it where that is not installed."""
        return _MODULE.format(source=BuilderSource(self.gm).codegen())
