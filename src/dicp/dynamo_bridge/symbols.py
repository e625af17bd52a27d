"""Sizes that are symbols: where each of them comes from, and arithmetic on them that any part of a graph can repeat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import sympy
import torch
from torch.fx import Graph, GraphModule, Node, Proxy
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

__all__ = ["SymbolSources", "arithmetic", "expression_of", "free_symbols_of", "is_number", "lifted_sizes"]

aten = torch.ops.aten
_SIZES = (aten.sym_size.int, aten.sym_stride.int, aten.sym_numel.default, aten.sym_storage_offset.default)
Number = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)


def is_number(node: Node) -> bool:
    """Whether a node's value is a number: a size, or arithmetic on sizes."""
    return isinstance(node.meta.get("val"), Number)


def expression_of(value: Any) -> sympy.Expr | None:
    """The expression of a symbolic number."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value.node.expr
    return None


def free_symbols_of(values: Iterable[Any]) -> Iterator[sympy.Symbol]:
    """The symbols in sizes, strides and offsets of fake tensors and in numbers, in a fixed order, each once."""
    found: dict[sympy.Symbol, None] = {}
    for value in values:
        for part in value if isinstance(value, list | tuple) else (value,):
            if isinstance(part, torch.Tensor) and not part._has_symbolic_sizes_strides:
                continue
            if isinstance(part, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool):
                for symbol in sorted(free_symbols(part), key=str):
                    found[symbol] = None
    return iter(found)


class SymbolSources:
    """The node that gives each symbol of a graph its value; where only a tensor's size does, a node is added that reads it."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: dict[sympy.Symbol, Node] = {}
        placeholders = graph.find_nodes(op="placeholder")
        for node in graph.nodes:
            expression = expression_of(node.meta.get("val"))
            if isinstance(expression, sympy.Symbol):
                self.nodes.setdefault(expression, node)
        after = placeholders[-1] if placeholders else None
        for node in placeholders:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and after is not None:
                after = self._read_sizes(graph, node, value, after)

    def _read_sizes(self, graph: Graph, node: Node, value: torch.Tensor, after: Node) -> Node:
        readings = (
            *((aten.sym_size.int, (d,), n) for d, n in enumerate(value.shape)),
            *((aten.sym_stride.int, (d,), n) for d, n in enumerate(_strides(value))),
        )
        for target, args, number in readings:
            expression = expression_of(number)
            if isinstance(expression, sympy.Symbol) and expression not in self.nodes:
                with graph.inserting_after(after):
                    after = graph.call_function(target, (node, *args))
                after.meta["val"] = number
                self.nodes[expression] = after
        return after


def _strides(value: torch.Tensor) -> tuple[Any, ...]:
    return value.stride() if value.layout is torch.strided else ()


def lifted_sizes(gm: GraphModule) -> SymbolSources:
    """Rewrites sizes that are read from computed tensors as arithmetic on the symbols: no part of a graph waits for them."""
    graph = gm.graph
    sources = SymbolSources(graph)
    for node in [node for target in _SIZES for node in graph.find_nodes(op="call_function", target=target)]:
        if node.args[0].op == "placeholder":
            continue
        expression = expression_of(node.meta.get("val"))
        if expression is None:
            if isinstance(node.meta.get("val"), int):
                node.replace_all_uses_with(node.meta["val"])
                graph.erase_node(node)
            continue
        symbols = expression.free_symbols
        if isinstance(expression, sympy.Symbol) or not symbols <= sources.nodes.keys():
            if sources.nodes.get(expression, node) is not node:
                node.replace_all_uses_with(sources.nodes[expression])
                graph.erase_node(node)
            continue
        with graph.inserting_before(node):
            number = arithmetic(gm, expression, {symbol: sources.nodes[symbol] for symbol in symbols})
        if isinstance(number, Node):
            node.replace_all_uses_with(number)
            graph.erase_node(node)
    return sources


def arithmetic(gm: GraphModule, expression: sympy.Expr, values: dict[sympy.Symbol, Node]) -> Any:
    """Nodes that compute an expression; each has the SymInt of its part as `val`."""
    tracer = torch.fx.proxy.GraphAppendingTracer(gm.graph)
    before = {id(node) for node in gm.graph.nodes}
    proxies = {symbol: Proxy(node, tracer) for symbol, node in values.items()}
    result = sympy_interp(PythonReferenceAnalysis, proxies, expression)
    for node in gm.graph.nodes:
        if id(node) not in before:
            arguments, keywords = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            node.meta["val"] = node.target(*arguments, **keywords)
    return result.node if isinstance(result, Proxy) else result
