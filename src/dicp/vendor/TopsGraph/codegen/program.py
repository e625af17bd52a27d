"""The emitted program of a graph: one source for each set of sizes, its check, its interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule

from dicp.emitted.program import EmittedProgram
from dicp.errors import LOG, DicpError, InvalidGraphError, warn_once
from dicp.graph.text import graph_text
from dicp.vendor.TopsGraph.codegen import recording
from dicp.vendor.TopsGraph.codegen.builder_source import BuilderSource
from dicp.vendor.TopsGraph.codegen.interpreter import interpret
from dicp.vendor.TopsGraph.fixed_sizes import Sizes, example_sizes, symbol_inputs, with_sizes
from dicp.vendor.TopsGraph.opset_transform import topsgraph_opset_transform

__all__ = ["SizedProgram", "SourceProgram", "TopsProgram"]


class SourceProgram(EmittedProgram):
    """A program as text."""

    def __init__(self, source: str) -> None:
        self.source = source

    def texts(self) -> Mapping[str, str]:
        return {"topsgraph.cpp": self.source}

    @cached_property
    def recorded(self) -> recording.Recording:
        """What the program builds: it is compiled against the stub, and run."""
        return recording.read_recording(recording.record(self.source))

    @cached_property
    def types(self) -> dict[int, Any]:
        """Of all results, by the rules of the operators; raises InvalidGraphError."""
        return recording.check(self.recorded)

    def check(self) -> None:
        assert self.types is not None

    def interpret(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The outputs on the CPU, from the recording alone."""
        return interpret(self.recorded, self.types, inputs)


class SizedProgram(SourceProgram):
    """The program of a graph for fixed sizes."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = topsgraph_opset_transform(gm)
        super().__init__(BuilderSource(self.gm).codegen())

    def check(self) -> None:
        """What the program builds, held against the operators' rules and the types of the graph."""
        outputs: Any = self.gm.graph.output_node().args[0]
        built = [self.types[number] for number in self.recorded.outputs]
        expected = [node.meta["val"] for node in outputs]
        for number, one, other in zip(self.recorded.outputs, built, expected, strict=True):
            if one.shape != other.shape or one.dtype != other.dtype:
                raise InvalidGraphError(
                    f"output op{number} is {one.dtype} {list(one.shape)}, expected {other.dtype} {list(other.shape)}"
                )


class TopsProgram(EmittedProgram):
    """The program of a graph. Where sizes are symbols there is one for each set of sizes that the graph is called with."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self.symbols = symbol_inputs(gm)
        types = [node.meta["val"] for node in gm.graph.nodes if "val" in node.meta]
        self._programs: dict[tuple[int, ...], SizedProgram] = {}
        self.first = self.for_sizes(example_sizes(types))

    def for_sizes(self, sizes: Sizes) -> SizedProgram:
        """Raises UnsupportedError where these sizes have no program."""
        key = tuple(sizes[symbol] for symbol in self.symbols.values())
        if key not in self._programs:
            self._programs[key] = SizedProgram(with_sizes(self.gm, sizes))
        return self._programs[key]

    def texts(self) -> Mapping[str, str]:
        return {"topsgraph.txt": graph_text(self.first.gm), "topsgraph.cpp": self.first.source}

    def check(self) -> None:
        self.first.check()

    def interpret(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        return list(self.run_sized(inputs, lambda program, tensors: program.interpret(tensors)))

    def run_sized(
        self, inputs: Sequence[Any], run: Callable[[SizedProgram, list[torch.Tensor]], Sequence[torch.Tensor]]
    ) -> Sequence[torch.Tensor]:
        """Runs the program for the sizes among the inputs; sizes that have none run eagerly."""
        sizes = {symbol: int(inputs[position]) for position, symbol in self.symbols.items()}
        try:
            program = self.for_sizes(sizes)
            if program is not self.first:
                program.check()
        except DicpError as error:
            LOG.debug("sizes without a program", exc_info=True)
            warn_once(f"sizes:{error}", f"topsgraph: a graph runs eagerly with the sizes {sizes}: {error}")
            found: Sequence[torch.Tensor] = self.gm(*inputs)
            return found
        tensors = [value for position, value in enumerate(inputs) if position not in self.symbols]
        return run(program, tensors)
