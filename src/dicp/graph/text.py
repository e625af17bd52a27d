"""A typed graph as text for people: one line a node, with the type of what it gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

__all__ = ["graph_text", "node_text", "target_text", "type_text"]


def graph_text(gm: GraphModule, notes: Mapping[Node, str] | None = None) -> str:
    """The graph, one line a node; `notes` stand behind the lines of their nodes."""
    notes = notes or {}
    lines = []
    for node in gm.graph.nodes:
        line = node_text(node)
        lines.append(f"{line}  # {notes[node]}" if node in notes else line)
    for name, child in gm.named_children():
        if isinstance(child, GraphModule):
            lines += [f"{name}:", *(f"  {line}" for line in graph_text(child).splitlines())]
    return "\n".join(lines) + "\n"


def node_text(node: Node) -> str:
    """A node with the type of what it gives."""
    value = node.meta.get("val")
    if node.op == "placeholder":
        kind = "constant" if "constant" in node.meta else "input"
        return f"{kind} {node.name}: {type_text(value)}"
    if node.op == "output":
        return f"return {_argument(node.args[0])}"
    if node.op == "get_attr":
        return f"{node.name} = {node.target}"
    given = [_argument(argument) for argument in node.args]
    given += [f"{name}={_argument(argument)}" for name, argument in node.kwargs.items()]
    return f"{node.name}: {type_text(value)} = {target_text(node.target)}({', '.join(given)})"


def target_text(target: Any) -> str:
    """The name of what a node calls: `aten.add.Tensor`, `operator.mul`."""
    if isinstance(target, OpOverload | str):
        return str(target)
    module, name = getattr(target, "__module__", "") or "", getattr(target, "__name__", "") or str(target)
    return f"{module.removeprefix('_')}.{name}" if module in ("_operator", "math", "torch") else name


def type_text(value: Any) -> str:
    """What a node gives: `float32[s0, 4]`, with strides where they are not those of a dense row-major tensor."""
    if isinstance(value, torch.Tensor):
        return "".join(_tensor_text(value))
    if isinstance(value, list | tuple):
        return f"({', '.join(map(type_text, value))})"
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return f"{type(value).__name__.removeprefix('Sym').lower()}({value.node.expr})"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    return type(value).__name__


def _tensor_text(value: torch.Tensor) -> Iterator[str]:
    yield str(value.dtype).removeprefix("torch.")
    yield f"[{_numbers(value.shape)}]"
    if value.layout is not torch.strided:
        yield f" {str(value.layout).removeprefix('torch.')}"
        return
    if [str(stride) for stride in value.stride()] != [str(stride) for stride in _dense(value.shape)]:
        yield f" strides [{_numbers(value.stride())}]"
    offset = value.storage_offset()
    if str(offset) != "0":
        yield f" offset {offset}"
    if value.device.type != "cpu":
        yield f" {value.device}"


def _dense(shape: Any) -> list[Any]:
    """Strides of a row-major tensor, without asking anything of symbols."""
    strides: list[Any] = []
    expected: Any = 1
    for size in reversed(tuple(shape)):
        strides.append(expected)
        expected = size if isinstance(expected, int) and expected == 1 else _product(size, expected)
    return strides[::-1]


def _product(size: Any, rest: Any) -> Any:
    # torch takes a size of 0 for 1 in strides.
    return rest * (max(size, 1) if isinstance(size, int) else size)


def _numbers(values: Any) -> str:
    return ", ".join(str(value) for value in values)


def _argument(argument: Any) -> str:
    match argument:
        case Node():
            return argument.name
        case list():
            return f"[{', '.join(map(_argument, argument))}]"
        case tuple():
            return f"({', '.join(map(_argument, argument))})"
        case dict():
            return f"{{{', '.join(f'{k}: {_argument(v)}' for k, v in argument.items())}}}"
        case torch.dtype() | torch.layout() | torch.memory_format():
            return str(argument).removeprefix("torch.")
    return repr(argument)
