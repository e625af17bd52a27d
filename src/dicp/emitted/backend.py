"""The part that backends of emitted programs share: emit, check, hand over, or run without the vendor's SDK."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule

from dicore.settings import one_of
from dicp.backend import Backend, Runner
from dicp.emitted.precision import compared, eager_runner
from dicp.emitted.program import EmittedProgram, MissingSdkError
from dicp.errors import warn_once
from dicp.settings import EMITTED_RUN

__all__ = ["EmittingBackend"]


class EmittingBackend(Backend):
    """Compiles by emitting a program for a vendor's compiler.

    Without the vendor's SDK a graph is emitted and checked all the same, then runs eagerly, which is said once. With
    `options={"run": "interpreter"}`, or DICP_EMITTED_RUN, an interpreter of what was emitted runs it: for tests.
    """

    sdk: ClassVar[str]
    """What the user would install, for messages."""
    keeps_format = False
    options: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"run": one_of("vendor", "interpreter", "eager")}

    @abstractmethod
    def emit(self, graph: GraphModule) -> EmittedProgram:
        """The program of a graph that `supports` agreed to. Raises UnsupportedError."""

    @abstractmethod
    def hand_over(self, program: EmittedProgram) -> Runner:
        """Gives the program to the vendor's compiler: the only place that needs its SDK. Raises MissingSdkError, CompileError."""

    def checks_precision(self) -> bool:
        """Whether each run is compared with eager PyTorch."""
        return False

    def compile(self, graph: GraphModule) -> Runner:
        program = self.emit(graph)
        graph.meta["artifacts"] = dict(program.texts())
        program.check()
        precise = self.checks_precision()
        runner = self._runner(graph, program, precise)
        return compared(graph, runner, self.name) if precise else runner

    def runner_of(self, program: EmittedProgram) -> Runner:
        """By the vendor's SDK, or by the interpreter where that is not installed."""
        if EMITTED_RUN.get() == "vendor":
            try:
                return self.hand_over(program)
            except MissingSdkError as missing:
                warn_once(
                    f"sdk:{self.name}",
                    f"{self.name}: {self.sdk} was not found ({missing}). The graph is interpreted on the CPU.",
                )
        return interpreted(program)

    def _runner(self, graph: GraphModule, program: EmittedProgram, precise: bool) -> Runner:
        options: Mapping[str, Any] = graph.meta.get("options", {})
        chosen = options.get("run") or EMITTED_RUN.get()
        if chosen == "interpreter":
            return interpreted(program)
        if chosen == "vendor":
            try:
                return self.hand_over(program)
            except MissingSdkError as missing:
                instead = "interpreted on the CPU to be compared" if precise else "run eagerly"
                warn_once(
                    f"sdk:{self.name}",
                    f"{self.name}: {self.sdk} was not found ({missing}). Graphs are emitted and checked, but {instead}.",
                )
                if precise:
                    return interpreted(program)
        return eager_runner(graph)


def interpreted(program: EmittedProgram) -> Runner:
    """A runner by the program's interpreter; results go to the device of the first tensor that it is given."""

    def run(*inputs: Any) -> Sequence[Any]:
        device = next(
            (value.device for value in inputs if isinstance(value, torch.Tensor)), torch.device("cpu")
        )
        given = [value.detach().cpu() if isinstance(value, torch.Tensor) else value for value in inputs]
        return [result.to(device) for result in program.interpret(given)]

    return run
