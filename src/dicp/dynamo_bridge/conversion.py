"""Operator mapping by conversion: `@register_conversion([aten...])` on methods of a transformer.

A conversion backend maps ATen operators to operators of its own, one to one or one to many. Its transformer runs the graph once
and writes the graph of vendor operators: a method gets what it converts with proxies for tensors and calls `self.get_proxy` for
every operator it writes. The type of a result is inferred when it is written, from the operator's own rule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import Graph, GraphModule, Node, Proxy

from dicp.errors import UnsupportedError

__all__ = ["OperatorConversions", "VendorOperator", "register_conversion"]

Target = OpOverload | OpOverloadPacket | Callable[..., Any]
_MARK = "_conversion_targets"


class VendorOperator(ABC):
    """An operator of a graph compiler, as the target of FX nodes.

    `infer` says what a call gives, on fake tensors: it is the operator's rule for shapes and dtypes.
    """

    name: str

    @property
    def __name__(self) -> str:
        """FX names nodes by it."""
        return self.name

    @abstractmethod
    def infer(self, *args: Any, **kwargs: Any) -> Any:
        """The results of a call, for fake tensors (or a list or tuple of them)."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """In a pattern (`dicp.passes.patterns`) a call is written down; else its result is inferred."""
        proxies = [given for given in (*args, *kwargs.values()) if isinstance(given, Proxy)]
        if proxies:
            return proxies[0].tracer.create_proxy("call_function", self, args, kwargs)
        return self.infer(*args, **kwargs)

    def __repr__(self) -> str:
        return self.name


def register_conversion(
    targets: Target | Iterable[Target],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Says which operators a method converts. A packet (`aten.add`) stands for those of its overloads that nobody names."""
    listed = tuple(targets) if isinstance(targets, (list, tuple, set, frozenset)) else (targets,)

    def mark(method: Callable[..., Any]) -> Callable[..., Any]:
        setattr(method, _MARK, (*getattr(method, _MARK, ()), *listed))
        return method

    return mark


class OperatorConversions(torch.fx.Transformer):
    """Base of a backend's transformer; a subclass holds the conversions.

    A method may raise UnsupportedError for what it cannot convert; `supports` of the backend should refuse such nodes first.
    """

    conversions: ClassVar[Mapping[Any, Callable[..., Any]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        found: dict[Any, Callable[..., Any]] = dict(cls.conversions)
        for method in vars(cls).values():
            for target in getattr(method, _MARK, ()):
                found[target] = method
        cls.conversions = found

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        self.node: Node | None = None
        """The ATen node that is being converted, for its metadata."""

    @classmethod
    def conversion_of(cls, target: Any) -> Callable[..., Any] | None:
        """The method that converts an operator: by overload, else by packet."""
        found = cls.conversions.get(target)
        if found is None and isinstance(target, OpOverload):
            found = cls.conversions.get(target.overloadpacket)
        return found

    @classmethod
    def refusal(cls, node: Node) -> str:
        """Why a call cannot be converted, found out by converting it alone; nothing where it can be."""
        if cls.conversion_of(node.target) is None:
            return f"there is no conversion of {node.target}"
        graph = Graph()
        copied = {argument: graph.placeholder(argument.name) for argument in node.all_input_nodes}
        for argument, placeholder in copied.items():
            placeholder.meta = dict(argument.meta)
        graph.output(graph.node_copy(node, copied.__getitem__))
        try:
            cls(GraphModule(torch.nn.Module(), graph)).transform()
        except UnsupportedError as error:
            return str(error)
        return ""

    def run_node(self, n: Node) -> Any:
        self.node = n
        return super().run_node(n)

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Proxy:
        proxy: Proxy = super().placeholder(target, args, kwargs)
        assert self.node is not None
        proxy.node.meta = dict(self.node.meta)
        return proxy

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        convert = self.conversion_of(target)
        if convert is None:
            if getattr(target, "__module__", "") == "_operator":
                return self._keep(target, args, kwargs)
            raise UnsupportedError(f"{type(self).__name__} has no conversion of {target}")
        return convert(self, *args, **kwargs)

    def _keep(self, target: Any, args: Any, kwargs: Any) -> Any:
        result = super().call_function(target, args, kwargs)
        if isinstance(result, Proxy) and self.node is not None:
            result.node.meta = dict(self.node.meta)
        return result

    def get_proxy(
        self, operator: VendorOperator, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
    ) -> Proxy:
        """Writes a call of a vendor operator and infers what it gives."""
        kwargs = dict(kwargs or {})
        proxy = self.tracer.create_proxy("call_function", operator, args, kwargs)
        value = operator(*_values(proxy.node.args), **_values(proxy.node.kwargs))
        proxy.node.meta = {"val": value}
        return proxy


def _values(arguments: Any) -> Any:
    return torch.fx.map_arg(arguments, lambda node: node.meta["val"])
