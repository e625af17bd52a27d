"""The code of a graph of GE's operators: its JSON, in a Python module that runs it."""

from __future__ import annotations

import json

from torch.fx import GraphModule

from dicp.vendor.AscendGraph.codegen.graph_json import graph_json

__all__ = ["AscendCodegen"]

_MODULE = """\
from dicp.vendor.AscendGraph.config import BACKEND
from dicp.vendor.AscendGraph.program import AscendProgram

program = AscendProgram({text!r})
program.check()
run = BACKEND.runner_of(program)


def call(arguments):
    given = list(arguments)
    arguments.clear()
    return list(run(*given))
"""


class AscendCodegen:
    """Writes the code of one graph."""

    def __init__(self, gm: GraphModule, cpu_gm: GraphModule, folder: str, graph_key: str) -> None:
        self.gm, self.graph_key = gm, graph_key

    def json_text(self) -> str:
        """The graph as GE's loader reads it. Raises UnsupportedError."""
        return json.dumps(graph_json(self.gm, f"graph_{self.graph_key}"), indent=1, allow_nan=False)

    def codegen(self) -> str:
        """A module whose `call` runs the graph by the vendor's SDK, or interprets it where that is not installed."""
        return _MODULE.format(text=self.json_text())
