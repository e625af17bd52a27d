"""Rewrites of small patterns, each declared as two functions: what is looked for, and what stands in its place.

    def search(x, y, slope):
        return aten.add.Tensor(aten.mul.Tensor(x, slope), y)

    def replace(x, y, slope):
        return scaled_add(x, y, slope)

    SCALED_ADD = PatternRewrite("scaled add", search, replace)

Parameters stand for any value, a node or a number; one that occurs twice stands for the same value. What is left out of a call
has its default. Values inside of a pattern that something else reads as well keep the pattern from matching.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node, Proxy

from dicp.graph.inference import infer_types

__all__ = ["PatternRewrite"]

Bindings = dict[str, Any]


@dataclass(frozen=True)
class PatternRewrite:
    """A pass over a graph. `accepts`, where given, is asked for each match with the values of the parameters by name."""

    name: str
    search: Callable[..., Any]
    replace: Callable[..., Any]
    accepts: Callable[[Mapping[str, Any]], bool] | None = None

    @property
    def __name__(self) -> str:
        """As which it is shown among the passes."""
        return self.name

    def __call__(self, gm: GraphModule) -> GraphModule:
        """The graph with all matches replaced, and types for what is new."""
        before = set(gm.graph.nodes)
        for root in reversed(list(gm.graph.nodes)):
            if root.op == "call_function" and root in before and not root._erased:
                self._rewrite(gm.graph, root)
        added = [node for node in gm.graph.nodes if node not in before]
        if added:
            infer_types(gm.graph, added)
            gm.recompile()
        return gm

    def _rewrite(self, graph: Graph, root: Node) -> None:
        match = _Match()
        if not match.fits(self._pattern, root) or not match.is_closed(root):
            return
        if self.accepts is not None and not self.accepts(match.bindings):
            return
        tracer = torch.fx.proxy.GraphAppendingTracer(graph)
        given = {
            name: Proxy(value, tracer) if isinstance(value, Node) else value
            for name, value in match.bindings.items()
        }
        with graph.inserting_before(root):
            result = self.replace(**given)
        root.replace_all_uses_with(result.node if isinstance(result, Proxy) else result)
        for node in match.nodes:
            graph.erase_node(node)

    @cached_property
    def _pattern(self) -> Node:
        """The node of the result of `search`."""
        graph = torch.fx.symbolic_trace(self.search).graph
        root = graph.output_node().args[0]
        if not isinstance(root, Node) or root.op != "call_function":
            raise TypeError(f"pattern {self.name!r}: search must return the result of one call, not {root}.")
        unknown = set(inspect.signature(self.replace).parameters) ^ set(
            inspect.signature(self.search).parameters
        )
        if unknown:
            raise TypeError(
                f"pattern {self.name!r}: search and replace have other parameters: {', '.join(sorted(unknown))}."
            )
        return root


class _Match:
    """What a pattern stands for at one place of a graph."""

    def __init__(self) -> None:
        self.bindings: Bindings = {}
        self.nodes: list[Node] = []
        """The calls of the pattern, each before what it reads."""

    def fits(self, pattern: Any, value: Any) -> bool:
        if isinstance(pattern, Node):
            if pattern.op == "placeholder":
                bound = self.bindings.setdefault(str(pattern.target), value)
                return _equal(bound, value)
            return self._fits_call(pattern, value)
        if isinstance(pattern, list | tuple):
            return (
                isinstance(value, list | tuple)
                and len(pattern) == len(value)
                and all(map(self.fits, pattern, value))
            )
        return _equal(pattern, value)

    def _fits_call(self, pattern: Node, value: Any) -> bool:
        if not isinstance(value, Node) or value.op != "call_function" or value.target is not pattern.target:
            return False
        if value in self.nodes:
            self.nodes.remove(value)
        self.nodes.append(value)
        wanted, given = dict(_arguments(pattern)), dict(_arguments(value))
        return wanted.keys() == given.keys() and all(self.fits(wanted[name], given[name]) for name in wanted)

    def is_closed(self, root: Node) -> bool:
        """Whether nothing outside reads what is inside."""
        inside = set(self.nodes)
        return all(node is root or set(node.users) <= inside for node in self.nodes)


def _arguments(node: Node) -> Iterator[tuple[Any, Any]]:
    """Of a call, by name and with defaults where there is a schema."""
    if not isinstance(node.target, OpOverload):
        yield from enumerate(node.args)
        yield from node.kwargs.items()
        return
    for index, argument in enumerate(node.target._schema.arguments):
        if index < len(node.args):
            yield argument.name, node.args[index]
        else:
            yield argument.name, node.kwargs.get(argument.name, argument.default_value)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Node) or isinstance(other, Node):
        return one is other
    return type(one) is type(other) and bool(one == other)
