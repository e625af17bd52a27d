"""What all conversions write with: operands of one dtype, broadcasting, constants."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node, Proxy

from dicp.dynamo_bridge.conversion import OperatorConversions
from dicp.errors import InvalidGraphError, UnsupportedError
from dicp.vendor.TopsGraph.codegen.dtypes import NAMES
from dicp.vendor.TopsGraph.fixed_sizes import alone, example_sizes, with_sizes
from dicp.vendor.TopsGraph.operators import operator_named

__all__ = ["HALVES", "BuilderConversions", "Value"]

HALVES = (torch.float16, torch.bfloat16)
Value = Proxy | float
"""An operand in ATen: a tensor or a number."""


class BuilderConversions(OperatorConversions):
    """Base of the families. Sizes are numbers: see `fixed_sizes`."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        self._constants: dict[tuple[str, torch.dtype], Proxy] = {}

    @classmethod
    def refusal(cls, node: Node) -> str:
        """Why a call cannot be converted, found out by converting it for example sizes."""
        if cls.conversion_of(node.target) is None:
            return f"there is no conversion of {node.target}"
        types = [node.meta["val"], *(argument.meta["val"] for argument in node.all_input_nodes)]
        try:
            graph = with_sizes(alone(node), example_sizes(types))
            for value in graph.graph.nodes:
                if "val" in value.meta:
                    require_type(value.meta["val"])
            cls(graph).transform()
        except (UnsupportedError, InvalidGraphError) as error:
            return f"{node.target}: {error}"
        return ""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is operator.getitem and isinstance(args[0], list):
            return args[0][args[1]]
        return super().call_function(target, args, kwargs)

    def write(self, name: str, *args: Any, **kwargs: Any) -> Proxy:
        """A call of the builder's operator of a name."""
        return self.get_proxy(operator_named(name), args, kwargs)

    @property
    def result(self) -> torch.Tensor:
        """The type of what is converted; of several, the first."""
        assert self.node is not None
        value = self.node.meta["val"]
        found: torch.Tensor = value[0] if isinstance(value, list | tuple) else value
        return found

    @staticmethod
    def type_of(x: Proxy) -> torch.Tensor:
        found: torch.Tensor = x.node.meta["val"]
        return found

    def shape(self, x: Proxy) -> tuple[int, ...]:
        return tuple(self.type_of(x).shape)

    def dtype(self, x: Proxy) -> torch.dtype:
        return self.type_of(x).dtype

    def constant(self, value: float, dtype: torch.dtype, shape: Sequence[int] = ()) -> Proxy:
        """A number as a tensor."""
        require_type(torch.empty((), dtype=dtype, device="meta"))
        key = (repr(value), dtype)
        if key not in self._constants:
            self._constants[key] = self.write("Const", value, shape=(), dtype=dtype)
        return self.broadcast_to(self._constants[key], shape)

    def listed(self, values: Sequence[float], dtype: torch.dtype) -> Proxy:
        """Several numbers as a tensor of one dimension."""
        return self.write("Const", list(values), shape=(len(values),), dtype=dtype)

    def convert(self, x: Proxy, dtype: torch.dtype) -> Proxy:
        if self.dtype(x) == dtype:
            return x
        if dtype == torch.bool:
            return self.write("NotEqual", x, self.constant(0, self.dtype(x)))
        return self.write("Convert", x, dtype=dtype)

    def broadcast_to(self, x: Proxy, shape: Sequence[int]) -> Proxy:
        """Along new dimensions in front, and along those of length 1."""
        given = self.shape(x)
        if given == tuple(shape):
            return x
        first = len(shape) - len(given)
        return self.write("BroadcastInDim", x, list(range(first, len(shape))), shape=tuple(shape))

    def reshape(self, x: Proxy, shape: Sequence[int]) -> Proxy:
        return x if self.shape(x) == tuple(shape) else self.write("Reshape", x, shape=tuple(shape))

    def operand(self, value: Value, dtype: torch.dtype) -> Proxy:
        """A tensor or a number, as a tensor of a dtype."""
        return self.convert(value, dtype) if isinstance(value, Proxy) else self.constant(value, dtype)

    def common_dtype(self, *values: Value) -> torch.dtype:
        """Which dtype ATen computes with."""
        types: list[Any] = [self.type_of(v) if isinstance(v, Proxy) else v for v in values]
        found = types[0]
        for index, other in enumerate(types[1:]):
            dtype = torch.result_type(found, other)
            if index + 2 == len(types):
                return dtype
            tensors = [value for value in (found, other) if isinstance(value, torch.Tensor)]
            shape = torch.broadcast_shapes(*(value.shape for value in tensors)) if tensors else ()
            found = torch.empty(shape, dtype=dtype, device="meta")
        return torch.result_type(found, found) if isinstance(found, torch.Tensor) else torch.float32

    def wide(self, x: Value) -> Proxy:
        """For several operators in a row: half dtypes are rounded once, at the end."""
        if not isinstance(x, Proxy):
            return self.constant(x, torch.float32)
        return self.convert(x, torch.float32) if self.dtype(x) in HALVES else x

    def floating(self, x: Proxy) -> Proxy:
        """Whole numbers become floating ones, half dtypes wider ones."""
        return x if self.dtype(x) == torch.float32 else self.convert(x, torch.float32)

    def dims(self, given: int | Sequence[int] | None, rank: int) -> list[int]:
        """Dimensions counted from the front; none given are all."""
        listed = [given] if isinstance(given, int) else list(given or [])
        return [dim % max(rank, 1) for dim in listed][:rank] if listed else list(range(rank))


def require_type(value: Any) -> None:
    """Raises UnsupportedError for tensors that the builder has no type of."""
    if isinstance(value, list | tuple):
        for item in value:
            require_type(item)
    elif isinstance(value, torch.Tensor):
        if value.dtype not in NAMES:
            raise UnsupportedError(f"the builder has no type for {value.dtype}")
        if not value.numel():
            raise UnsupportedError("a tensor without elements")
