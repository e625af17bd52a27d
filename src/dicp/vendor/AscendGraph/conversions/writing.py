"""What conversions write with: operators of GE on operands that they take, casts, constants, sizes."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Proxy
from torch.fx.node import map_aggregate

from dicp.dynamo_bridge.conversion import OperatorConversions, VendorOperator
from dicp.errors import InvalidGraphError, UnsupportedError
from dicp.graph.inference import inferring
from dicp.vendor.AscendGraph.dtypes import CARRIERS, GRAPH_DTYPES, name_of, number_of
from dicp.vendor.AscendGraph.operators import AscendOperator, operator_of
from dicp.vendor.AscendGraph.prototypes import PrototypeSlot

__all__ = ["HALVES", "AscendWriter"]

HALVES = (torch.float16, torch.bfloat16)
_FLOATS = {"FLOAT", "FLOAT16", "BF16", "DOUBLE"}


class AscendWriter(OperatorConversions):
    """Base of the conversions. A method gets proxies for tensors, and numbers, perhaps symbolic ones, for sizes."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        self._graph = graph.graph
        self._constants: dict[Any, Proxy] = {}
        self.device = next(
            (v.device for n in graph.graph.nodes if isinstance(v := n.meta.get("val"), Tensor)),
            torch.device("cpu"),
        )

    def transform(self) -> GraphModule:
        with inferring(self._graph), torch.device(self.device), warnings.catch_warnings():
            # Sizes stand in the nodes as they are, and code generation reads them there.
            warnings.filterwarnings("ignore", message="Raw Sym")
            return super().transform()

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is operator.getitem and isinstance(args[0], list | tuple):
            return args[0][args[1]]
        if self.conversion_of(target) is None:
            return super().call_function(target, args, kwargs)
        node = self.node
        assert node is not None
        for value in (node.meta["val"], *(n.meta["val"] for n in node.all_input_nodes)):
            _require_known_dtypes(value)
        args, kwargs = map_aggregate((args, kwargs), _number_of_proxy)  # type: ignore[misc]
        result = super().call_function(target, args, kwargs)
        _require_type(f"the conversion of {target}", result, node.meta["val"])
        return result

    def get_proxy(
        self, operator: VendorOperator, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
    ) -> Proxy:
        try:
            return super().get_proxy(operator, args, kwargs)
        except (UnsupportedError, InvalidGraphError):
            raise
        except Exception as error:
            raise InvalidGraphError(f"{operator.name}: {type(error).__name__}: {error}") from error

    # What is known of values.

    @property
    def result(self) -> Any:
        """The fake tensor, or the tuple of them, that the converted operator gives."""
        assert self.node is not None
        return self.node.meta["val"]

    def shape(self, x: Proxy) -> list[Any]:
        return list(x.node.meta["val"].shape)

    def rank(self, x: Proxy) -> int:
        return len(x.node.meta["val"].shape)

    def dtype(self, x: Proxy) -> torch.dtype:
        found: torch.dtype = x.node.meta["val"].dtype
        return found

    def axis(self, x: Proxy, dim: int) -> int:
        """A dimension counted from the front."""
        return dim % max(self.rank(x), 1)

    def axes(self, x: Proxy, dims: Sequence[int] | int | None) -> list[int]:
        """Dimensions counted from the front; None and an empty list stand for all of them."""
        listed = [dims] if isinstance(dims, int) else list(dims or range(self.rank(x)))
        return [self.axis(x, dim) for dim in listed]

    # What is written.

    def ge(self, type_: str, *inputs: Any, **attributes: Any) -> Any:
        """Writes an operator: gives its result, or the list of its results.

        Operands of dtypes that its prototype does not have are cast to dtypes that it has, and the results back.
        """
        found = operator_of(type_)
        casts = _casts(found, inputs)
        if not casts:
            return self._results(self.get_proxy(found, inputs, attributes))
        wanted = self._inferred(found, inputs, attributes)
        carried = map_aggregate(inputs, lambda x: self._carried(x, casts))
        results = self._results(self.get_proxy(found, carried, attributes))  # type: ignore[arg-type]
        if isinstance(results, list):
            return [self.cast(x, value.dtype) for x, value in zip(results, wanted, strict=True)]
        return self.cast(results, wanted.dtype)

    def _inferred(self, found: AscendOperator, inputs: Any, attributes: Mapping[str, Any]) -> Any:
        values = map_aggregate(inputs, lambda x: x.node.meta["val"] if isinstance(x, Proxy) else x)
        return found(*values, **attributes)  # type: ignore[misc]

    def _carried(self, x: Any, casts: Mapping[torch.dtype, torch.dtype]) -> Any:
        return self.cast(x, casts[self.dtype(x)]) if isinstance(x, Proxy) and self.dtype(x) in casts else x

    def _results(self, proxy: Proxy) -> Any:
        values = proxy.node.meta["val"]
        if isinstance(values, Tensor):
            return proxy
        parts = []
        for index, value in enumerate(values):
            part = proxy[index]  # type: ignore[index]
            part.node.meta = {"val": value}
            parts.append(part)
        return parts

    def cast(self, x: Any, dtype: torch.dtype) -> Proxy:
        """The value in a dtype; a size becomes a tensor without dimensions."""
        if isinstance(x, Proxy) and self.dtype(x) == dtype:
            return x
        number = number_of(dtype)
        if isinstance(x, Proxy) and self.dtype(x).is_floating_point and dtype == torch.bool:
            return self.ge("NotEqual", x, self.constant(0, self.dtype(x)))  # type: ignore[no-any-return]
        return self.get_proxy(operator_of("Cast"), (x,), {"dst_type": number})

    def constant(self, value: Any, dtype: torch.dtype) -> Proxy:
        """A number or list of numbers. JSON has no infinities and the loader few dtypes: others are made of what they have."""
        if isinstance(value, torch.SymInt):
            return self.cast(value, dtype)
        key = (repr(value), dtype)
        if key not in self._constants:
            self._constants[key] = self._constant(value, dtype)
        return self._constants[key]

    def _constant(self, value: Any, dtype: torch.dtype) -> Proxy:
        if isinstance(value, float) and not math.isfinite(value):
            [bits] = torch.tensor([value]).view(torch.int32).tolist()
            special = self.ge("Bitcast", self.constant(bits, torch.int32), type=torch.float32)
            return self.cast(special, dtype)
        carrier = {torch.bool: torch.int32, torch.uint8: torch.int32, torch.bfloat16: torch.float32}.get(
            dtype
        )
        if carrier is not None:
            exact = torch.tensor(value, dtype=dtype).to(carrier).tolist()
            return self.cast(self.constant(exact, carrier), dtype)
        attributes = {"value": torch.tensor(value, dtype=dtype, device="cpu").tolist(), "dtype": dtype}
        return self.get_proxy(operator_of("Const"), (), attributes)

    def scalar_like(self, value: Any, x: Proxy) -> Proxy:
        return self.constant(value, self.dtype(x))

    def reshape(self, x: Proxy, shape: Sequence[Any]) -> Proxy:
        return self.ge("Reshape", x, list(shape))  # type: ignore[no-any-return]

    def broadcast(self, x: Proxy, shape: Sequence[Any]) -> Proxy:
        return x if self.shape(x) == list(shape) else self.ge("BroadcastTo", x, list(shape))

    def filled(self, shape: Sequence[Any], value: Any, dtype: torch.dtype) -> Proxy:
        if dtype == torch.bool:
            return self.ge("Fill", list(shape), self.constant(bool(value), dtype))  # type: ignore[no-any-return]
        return self.ge("Fill", list(shape), self.constant(value, dtype))  # type: ignore[no-any-return]

    def in_float32(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Computes in float32 what is given in half precision, and gives the dtype of the first again."""
        dtype = next(self.dtype(x) for x in inputs if isinstance(x, Proxy))
        if dtype not in HALVES:
            return function(*inputs)
        wide = [
            self.cast(x, torch.float32) if isinstance(x, Proxy) and self.dtype(x) in HALVES else x
            for x in inputs
        ]
        return self.cast(function(*wide), dtype)


def _number_of_proxy(x: Any) -> Any:
    """Numbers of the graph are given as such: what needs them as tensors says so."""
    if isinstance(x, Proxy) and not isinstance(x.node.meta["val"], Tensor | list | tuple):
        return x.node.meta["val"]
    return x


def _require_known_dtypes(value: Any) -> None:
    for part in value if isinstance(value, list | tuple) else (value,):
        if isinstance(part, Tensor) and part.dtype not in GRAPH_DTYPES:
            number_of(part.dtype)


def _require_type(what: str, result: Any, expected: Any) -> None:
    if isinstance(expected, list | tuple):
        for one, other in zip(result, expected, strict=True):
            if one is not None:
                _require_type(what, one, other)
        return
    if not isinstance(result, Proxy) or not isinstance(expected, Tensor):
        raise InvalidGraphError(f"{what} gives {result}, expected {expected}")
    found = result.node.meta["val"]
    if found.dtype != expected.dtype or len(found.shape) != len(expected.shape):
        raise InvalidGraphError(
            f"{what} gives {found.dtype} {list(found.shape)}, expected {expected.dtype} {list(expected.shape)}"
        )


def _casts(found: AscendOperator, inputs: Sequence[Any]) -> dict[torch.dtype, torch.dtype]:
    """What dtypes of operands are cast to. Raises UnsupportedError where there is nothing that they can be cast to."""
    used: dict[torch.dtype, list[PrototypeSlot]] = {}
    for slot, given in zip(found.prototype.inputs, inputs, strict=False):
        for x in given if isinstance(given, list | tuple) else (given,):
            if isinstance(x, Proxy):
                used.setdefault(x.node.meta["val"].dtype, []).append(slot)
    casts = {}
    for dtype, where in used.items():
        if all(slot.allows(name_of(dtype)) for slot in where):
            continue
        for carrier in CARRIERS[dtype]:
            indices = dtype != torch.int64 or not any(_FLOATS & (slot.dtypes or _FLOATS) for slot in where)
            if indices and all(slot.allows(name_of(carrier)) for slot in where):
                casts[dtype] = carrier
                break
        else:
            raise UnsupportedError(
                f"{found.name} of GE takes no {dtype}, nor what could stand for it: {_slot_text(where)}"
            )
    return casts


def _slot_text(slots: Sequence[PrototypeSlot]) -> str:
    return "; ".join(f"{slot.name}: {', '.join(sorted(slot.dtypes or ()))}" for slot in dict.fromkeys(slots))
