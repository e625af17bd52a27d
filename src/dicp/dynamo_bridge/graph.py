"""From a graph of ATen operators to code of a graph compiler: `GraphTransformer`, for backends of operators of their own.

Such a backend is a `ConversionBackend`: it names its conversions and its code generator, and has everything else from here.
"""

from __future__ import annotations

import copy
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Protocol

import torch
from torch.fx import GraphModule, Node

from dicp import registry
from dicp.backend import Backend, Runner
from dicp.compile_jobs.disk_cache import default_folder
from dicp.dynamo_bridge.conversion import OperatorConversions
from dicp.errors import CompileError, DicpError
from dicp.graph.text import graph_text
from dicp.passes.pipeline import GraphPass, run_passes

__all__ = ["ConversionBackend", "GraphTransformer", "SourceGenerator"]


class SourceGenerator(Protocol):
    """Writes a graph of the backend's operators as a Python module with a function `call(arguments: list) -> list`."""

    def __init__(self, gm: GraphModule, cpu_gm: GraphModule, folder: str, graph_key: str) -> None: ...

    def codegen(self) -> str:
        """The source."""
        ...


class ConversionBackend(Backend):
    """A backend that maps ATen operators to operators of its own and generates code of those."""

    conversions: ClassVar[type[OperatorConversions]]
    patterns: ClassVar[Sequence[GraphPass]] = ()
    """Rewrites of the graph of its own operators, such as PatternRewrite."""
    codegen: ClassVar[Callable[..., SourceGenerator]]

    def supports(self, node: Node) -> bool:
        """Whether the conversion of this very call works."""
        return not self.conversions.refusal(node)

    def refusal(self, node: Node) -> str:
        """Why not."""
        return f"{self.name}: {self.conversions.refusal(node)}"

    def opset_transform(self, gm: GraphModule) -> GraphModule:
        """The graph in the backend's operators."""

        def conversion(gm: GraphModule) -> GraphModule:
            return self.conversions(gm).transform()

        return run_passes(gm, (conversion, *self.patterns))

    def compile(self, graph: GraphModule) -> Runner:
        """By way of a GraphTransformer."""
        transformer = GraphTransformer(graph, self)
        artifacts = graph.meta.setdefault("artifacts", {})
        artifacts["aten.txt"] = graph_text(graph)
        transformer.transform()
        artifacts[f"{self.name}.txt"] = graph_text(transformer.gm)
        runner = transformer.compile_to_fn()
        artifacts.update(transformer.artifacts)
        return runner


class GraphTransformer:
    """One graph on its way to code: first `transform`, then `codegen` or `compile_to_fn`."""

    def __init__(self, gm: GraphModule, backend: str | Backend) -> None:
        found = registry.find(backend) if isinstance(backend, str) else backend
        transform, codegen = (getattr(found, name, None) for name in ("opset_transform", "codegen"))
        if transform is None or codegen is None:
            raise DicpError(
                f"GraphTransformer: backend {found.name!r} has no conversions and no code generator: it compiles graphs as they"
                " are. Expected a ConversionBackend, or one with `opset_transform` and `codegen` as that has them."
            )
        self.gm = gm
        self.backend = found.name
        self.folder = str(default_folder())
        self.cpu_gm, self.graph_key = cpu_copy(gm), graph_key(gm, found.name)
        self.backend_opset_transform: Callable[[GraphModule], GraphModule] = transform
        self.backend_codegen: Callable[..., SourceGenerator] = codegen
        self.artifacts: dict[str, str] = {}

    def transform(self) -> None:
        """`gm` becomes a graph of the backend's operators, with types that their own rules infer."""
        self.gm = self.backend_opset_transform(self.gm)

    def codegen(self) -> str:
        """The source of the Python module that runs the graph."""
        source = self.backend_codegen(self.gm, self.cpu_gm, self.folder, self.graph_key).codegen()
        self.artifacts["generated.py"] = source
        return source

    def compile_to_module(self) -> ModuleType:
        """The module, run once."""
        source = self.codegen()
        module = ModuleType(f"dicp_graph_{self.graph_key}")
        module.__file__ = str(Path(self.folder) / f"{module.__name__}.py")
        sys.modules[module.__name__] = module  # where pickling and dataclasses look
        try:
            exec(compile(source, module.__file__, "exec"), vars(module))
        except DicpError:
            raise
        except Exception as error:
            raise CompileError(
                f"{self.backend}: generated code failed: {type(error).__name__}: {error}"
            ) from error
        return module

    def compile_to_fn(self) -> Runner:
        """The function of the graph's inputs, as one list."""
        call: Any = self.compile_to_module().call

        def run(arguments: list[Any]) -> Sequence[Any]:
            return call(arguments)  # type: ignore[no-any-return]

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def graph_key(gm: GraphModule, backend: str) -> str:
    """What names a graph: equal for equal graphs of equal types, in every process with the same versions."""
    constants = [
        _digest_of(node.meta["constant"])
        for node in gm.graph.find_nodes(op="placeholder")
        if "constant" in node.meta
    ]
    options: Mapping[str, Any] = gm.meta.get("options", {})
    parts = (backend, torch.__version__, graph_text(gm), repr(sorted(options.items())), *constants)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _digest_of(constant: torch.Tensor) -> str:
    """Of small ones the value: a code generator may write it down."""
    if constant.numel() > 4096:
        return ""
    raw = constant.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(bytes(raw.tolist())).hexdigest()


def cpu_copy(gm: GraphModule) -> GraphModule:
    """The graph as the CPU runs it: a reference for what a compiler made of it."""
    graph = copy.deepcopy(gm.graph)
    cpu = torch.device("cpu")
    for node in graph.nodes:
        if isinstance(node.kwargs.get("device"), torch.device):
            node.kwargs = {**node.kwargs, "device": cpu}
        node.args = tuple(cpu if isinstance(argument, torch.device) else argument for argument in node.args)
    return GraphModule(gm, graph)
