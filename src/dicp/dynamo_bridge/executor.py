"""Runs the steps of a graph: as a Python function that is written for it, so that a call costs little more than what it calls."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.utils._sympy.printers import PythonPrinter

from dicp.backend import Runner
from dicp.dynamo_bridge.symbols import expression_of, is_number

__all__ = ["CompiledStep", "written_executor"]

aten = torch.ops.aten


@dataclass(frozen=True)
class CompiledStep:
    """A runner with the nodes that its inputs and outputs are in the whole graph."""

    runner: Runner
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    keeps_format: bool = True


def restrided(value: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A copy with the strides that the graph promised."""
    if any(stride == 0 and length > 1 for stride, length in zip(strides, value.shape, strict=True)):
        # Elements that share memory are one element.
        kept = [length if stride else 1 for stride, length in zip(strides, value.shape, strict=True)]
        first = value[tuple(slice(length) for length in kept)]
        return restrided(first, strides).expand(value.shape)
    result = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
    written = result
    for dim, (size, stride) in enumerate(zip(value.shape, strides, strict=True)):
        if size > 1 and stride == 0:  # all are one element in memory
            written, value = written.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    written.copy_(value)
    return result


def written_executor(
    gm: GraphModule,
    steps: Sequence[CompiledStep | Sequence[Node]],
    *,
    promised: bool,
    symbols: Mapping[sympy.Symbol, Node],
) -> tuple[Callable[[list[Any]], list[Any]], str]:
    """A function of the list of the graph's inputs, which it empties, and its source.

    `promised`: whether outputs of eager operators must have the strides of the fake tensors too, as a backward graph expects
    of what was saved for it; results that compiled steps read always have them.
    """
    if len(steps) == 1 and isinstance(steps[0], CompiledStep):
        step = steps[0]
        placeholders, outputs = gm.graph.find_nodes(op="placeholder"), _outputs(gm.graph)
        same = list(step.inputs) == placeholders and list(step.outputs) == outputs
        if step.keeps_format and same and not any(node.meta.get("lifted") for node in placeholders):
            return boxed(step.runner), "# one compiled step is all of the graph\n"
    writer = _Writer(gm, symbols, _with_strides(gm.graph, steps, promised))
    source = writer.write(steps)
    namespace = dict(writer.constants)
    exec(compile(source, "<dicp graph>", "exec"), namespace)
    call: Any = namespace["call"]
    call._boxed_call = True
    return call, source


def boxed(runner: Runner) -> Callable[[list[Any]], list[Any]]:
    """The runner as a function of a list."""
    if getattr(runner, "_boxed_call", False):
        return runner  # type: ignore[return-value]

    def call(arguments: list[Any]) -> list[Any]:
        given = tuple(arguments)
        arguments.clear()
        return list(runner(*given))

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _with_strides(graph: Graph, steps: Sequence[CompiledStep | Sequence[Node]], promised: bool) -> set[Node]:
    """Results whose strides are compared with those that the graph promised."""
    found: set[Node] = set()
    for step in steps:
        if isinstance(step, CompiledStep):
            found |= {node for node in step.inputs if node.op == "call_function"}
    for node in graph.output_node().all_input_nodes:
        if promised and node.op == "call_function":
            found.add(node)
    for step in steps:
        if isinstance(step, CompiledStep):
            (found.difference_update if step.keeps_format else found.update)(step.outputs)
    return {node for node in found if _is_strided(node.meta.get("val"))}


def _outputs(graph: Graph) -> list[Any]:
    outputs: Any = graph.output_node().args[0]
    return list(outputs)


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_quantized


@dataclass
class _Writer:
    gm: GraphModule
    symbols: Mapping[sympy.Symbol, Node]
    checked: set[Node]
    constants: dict[str, Any] = field(
        default_factory=lambda: {"restrided": restrided, "math": math, "torch": torch}
    )
    names: dict[Node, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def write(self, steps: Sequence[CompiledStep | Sequence[Node]]) -> str:
        placeholders = self.gm.graph.find_nodes(op="placeholder")
        for node in placeholders:
            if "constant" in node.meta and node.meta.get("lifted"):
                self.names[node] = self.constant(node.meta["constant"])
        given = [node for node in placeholders if node not in self.names]
        self.lines.append(f"[{', '.join(map(self.name, given))}] = args")
        self.lines.append("args.clear()")
        units = list(_units(steps))
        last = _last_uses(units, self.gm.graph.output_node())
        self._free(None, given, last)
        for unit in units:
            if isinstance(unit, CompiledStep):
                self._compiled(unit, last)
                self._free(unit, unit.outputs, last)
            else:
                self._eager(unit)
                self._free(unit, (unit, *unit.all_input_nodes), last)
        outputs = ", ".join(self.text(value) for value in _outputs(self.gm.graph))
        self.lines.append(f"return [{outputs}]")
        return "def call(args):\n" + "".join(f"    {line}\n" for line in self.lines)

    def _compiled(self, step: CompiledStep, last: Mapping[Node, Any]) -> None:
        runner = self.constant(boxed(step.runner))
        inputs = ", ".join(map(self.name, step.inputs))
        done = [node for node in dict.fromkeys(step.inputs) if last.get(node) is step and not is_number(node)]
        self.lines.append(f"given = [{inputs}]")
        self._delete(done)
        outputs = ", ".join(map(self.name, step.outputs))
        self.lines.append(f"[{outputs}] = {runner}(given)" if outputs else f"{runner}(given)")
        for node in step.outputs:
            self._check(node)

    def _eager(self, node: Node) -> None:
        self.lines.append(f"{self.name(node)} = {self._call(node)}")
        self._check(node)

    def _call(self, node: Node) -> str:
        if node.op == "get_attr":
            return self.constant(operator.attrgetter(str(node.target))(self.gm))
        if node.op != "call_function":
            arguments = [*map(self.text, node.args), *(f"{k}={self.text(v)}" for k, v in node.kwargs.items())]
            if node.op == "call_module":
                return f"{self.constant(self.gm.get_submodule(str(node.target)))}({', '.join(arguments)})"
            return f"{arguments[0]}.{node.target}({', '.join(arguments[1:])})"
        if node.target is operator.getitem:
            return f"{self.text(node.args[0])}[{self.text(node.args[1])}]"
        if node.target is aten.sym_size.int:
            return f"{self.text(node.args[0])}.shape[{self.text(node.args[1])}]"
        if node.target is aten.sym_stride.int:
            return f"{self.text(node.args[0])}.stride({self.text(node.args[1])})"
        # The object of an overload in Python only forwards to the one below it.
        function = node.target._op if isinstance(node.target, OpOverload) else node.target
        arguments = [*map(self.text, node.args), *(f"{k}={self.text(v)}" for k, v in node.kwargs.items())]
        return f"{self.constant(function, str(node.target))}({', '.join(arguments)})"

    def _check(self, node: Node) -> None:
        if node not in self.checked:
            return
        strides = [self.number(stride) for stride in node.meta["val"].stride()]
        if any(stride is None for stride in strides):
            return
        name, wanted = self.name(node), "".join(f"{stride}, " for stride in strides)
        self.lines.append(f"if {name}.stride() != ({wanted}):")
        self.lines.append(f"    {name} = restrided({name}, ({wanted}))")

    def number(self, value: Any) -> str | None:
        """A number that may be symbolic, as Python; None where a symbol has no source."""
        expression = expression_of(value)
        if expression is None:
            return repr(value)
        if not expression.free_symbols <= self.symbols.keys():
            return None
        named = {symbol: sympy.Symbol(self.name(self.symbols[symbol])) for symbol in expression.free_symbols}
        return str(PythonPrinter().doprint(expression.xreplace(named)))

    def _free(self, unit: Any, nodes: Sequence[Node], last: Mapping[Node, Any]) -> None:
        done = [node for node in dict.fromkeys(nodes) if last.get(node) is unit and not is_number(node)]
        self._delete([node for node in done if node in self.names])

    def _delete(self, nodes: Sequence[Node]) -> None:
        names = [name for name in map(self.name, nodes) if name not in self.constants]
        if names:
            self.lines.append(f"del {', '.join(names)}")

    def name(self, node: Node) -> str:
        return self.names.setdefault(node, f"v{len(self.names)}")

    def constant(self, value: Any, hint: str = "") -> str:
        kept = "".join(character if character.isalnum() else "_" for character in hint)
        name = f"k{len(self.constants)}_{kept}" if kept else f"k{len(self.constants)}"
        self.constants[name] = value
        return name

    def text(self, value: Any) -> str:
        """An argument as Python."""
        match value:
            case Node():
                return self.name(value)
            case None | bool() | int() | str():
                return repr(value) if type(value) in (type(None), bool, int, str) else self.constant(value)
            case float() if math.isfinite(value) and type(value) is float:
                return repr(value)
            case slice():
                return f"slice({self.text(value.start)}, {self.text(value.stop)}, {self.text(value.step)})"
            case tuple():
                return f"({''.join(f'{self.text(item)}, ' for item in value)})"
            case list():
                return f"[{', '.join(map(self.text, value))}]"
            case dict():
                return f"{{{', '.join(f'{k!r}: {self.text(v)}' for k, v in value.items())}}}"
        return self.constant(value)


def _units(steps: Sequence[CompiledStep | Sequence[Node]]) -> Iterator[CompiledStep | Node]:
    for step in steps:
        if isinstance(step, CompiledStep):
            yield step
        else:
            yield from step


def _last_uses(units: Sequence[CompiledStep | Node], output: Node) -> dict[Node, Any]:
    """Where each value is needed for the last time; unused results: where they are made, inputs: before all steps (None)."""
    last: dict[Node, Any] = {node: None for node in output.graph.find_nodes(op="placeholder")}
    for unit in units:
        made = unit.outputs if isinstance(unit, CompiledStep) else (unit,)
        needed = unit.inputs if isinstance(unit, CompiledStep) else unit.all_input_nodes
        for node in (*made, *needed):
            last[node] = unit
    for node in output.all_input_nodes:
        last[node] = output
    return last
