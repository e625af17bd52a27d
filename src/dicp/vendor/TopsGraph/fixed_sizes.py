"""A graph for certain sizes: the builder's types have no symbols, so one with symbolic sizes is emitted for each set of them."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch.fx import Graph, GraphModule, Node

from dicp.dynamo_bridge.symbols import expression_of, is_number
from dicp.errors import UnsupportedError
from dicp.graph.sizes import symbol_entry

__all__ = ["Sizes", "alone", "example_sizes", "symbol_inputs", "with_sizes"]

Sizes = Mapping[sympy.Symbol, int]


def symbol_inputs(gm: GraphModule) -> dict[int, sympy.Symbol]:
    """Which inputs of a graph are sizes, by position."""
    found = {}
    for position, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        expression = expression_of(node.meta.get("val"))
        if isinstance(expression, sympy.Symbol):
            found[position] = expression
    return found


def example_sizes(values: Any) -> dict[sympy.Symbol, int]:
    """For the symbols of some types, the sizes that they were traced with. Raises UnsupportedError where one has none."""
    found: dict[sympy.Symbol, int] = {}
    for number in _numbers_in(values):
        if not isinstance(number, torch.SymInt) or expression_of(number) is None:
            continue
        for symbol in number.node.expr.free_symbols:
            example = symbol_entry(symbol, number.node.shape_env)["hint"]
            if example is None:
                raise UnsupportedError(f"the size {symbol} is known at run time only")
            found[symbol] = example
    return found


def _numbers_in(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [*value.shape, *value.stride(), value.storage_offset()]
    if isinstance(value, list | tuple):
        return [number for item in value for number in _numbers_in(item)]
    return [value]


def with_sizes(gm: GraphModule, sizes: Sizes) -> GraphModule:
    """The graph with numbers for symbols, and types without storage; inputs that are sizes are gone."""
    graph = Graph()
    copied: dict[Node, Any] = {}

    def argument(value: Any) -> Any:
        return copied[value] if isinstance(value, Node) else _fixed(value, sizes)

    for node in gm.graph.nodes:
        if node.op == "output":
            graph.output(torch.fx.node.map_aggregate(node.args[0], argument))
        elif "val" in node.meta and is_number(node):
            copied[node] = _fixed(node.meta["val"], sizes)
        else:
            new = graph.create_node(
                node.op,
                node.target,
                torch.fx.node.map_aggregate(node.args, argument),
                torch.fx.node.map_aggregate(node.kwargs, argument),
                name=node.name,
            )
            new.meta = {**node.meta, "val": _fixed(node.meta["val"], sizes)}
            copied[node] = new
    return GraphModule(torch.nn.Module(), graph)


def alone(node: Node) -> GraphModule:
    """A call as a graph of its own."""
    graph = Graph()
    copied = {argument: graph.placeholder(argument.name) for argument in node.all_input_nodes}
    for argument, placeholder in copied.items():
        placeholder.meta = dict(argument.meta)
    new = graph.node_copy(node, copied.__getitem__)
    values = node.meta["val"]
    if isinstance(values, list | tuple):
        parts = []
        for index, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                part = graph.call_function(operator.getitem, (new, index))
                part.meta["val"] = value
                parts.append(part)
        graph.output(parts)
    else:
        graph.output([new])
    return GraphModule(torch.nn.Module(), graph)


def _fixed(value: Any, sizes: Sizes) -> Any:
    if isinstance(value, torch.Tensor):
        shape, stride = ([_fixed(n, sizes) for n in numbers] for numbers in (value.shape, value.stride()))
        return torch.empty_strided(shape, stride, dtype=value.dtype, device="meta")
    if isinstance(value, list | tuple):
        return type(value)(_fixed(item, sizes) for item in value)
    expression = expression_of(value)
    if expression is None:
        return value
    found = expression.xreplace({symbol: sympy.Integer(size) for symbol, size in sizes.items()})
    if found.free_symbols:
        raise UnsupportedError(f"the size {expression} is known at run time only")
    if isinstance(value, torch.SymInt):
        return int(found)
    return bool(found) if isinstance(value, torch.SymBool) else float(found)
