"""Operators that make one element of many: reductions, and scans along a dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import Node

from dicp.loops.index import product
from dicp.loops.ir import ReduceKind, ScanKind
from dicp.loops.primitives import DTYPES, Value, held
from dicp.passes.lowering.definitions import Body
from dicp.passes.lowering.values import Index, argument, dtype_of, is_tensor, name_of, shape_of

__all__ = ["Reduction", "reduction_of"]

Kind = ReduceKind | ScanKind


@dataclass(frozen=True)
class Reduction:
    """Over dimensions of `source`; a scan keeps its dimension."""

    node: Node
    source: Node
    dims: tuple[int, ...]
    """Of the source, sorted: those that are reduced, or the one that is scanned."""
    keeps: bool
    kind: Kind
    computed_in: torch.dtype
    scan: bool = False
    mean: bool = False

    def kept(self) -> tuple[int, ...]:
        """The other dimensions of the source."""
        return tuple(d for d in range(len(shape_of(self.source))) if d not in self.dims)

    def value_dims(self) -> tuple[int, ...]:
        """For each kept dimension: which one of the result it is."""
        if self.keeps or self.scan:
            return self.kept()
        return tuple(range(len(self.kept())))

    def operands(self, body: Body, value: Value, index: Index) -> tuple[Value, ...]:
        """What is accumulated for an element of the source."""
        value = body.cast(value, self.computed_in)
        if self.kind not in ("argmax", "argmin"):
            return (value,)
        sizes = shape_of(self.source)
        position = body.ranges.linear([index[d] for d in self.dims], [sizes[d] for d in self.dims])
        return value, body.index(position)

    def results(self) -> tuple[torch.dtype, ...]:
        """The dtypes of what the instruction gives."""
        return (self.computed_in, torch.int64) if self.kind in ("argmax", "argmin") else (self.computed_in,)

    def finish(self, body: Body, results: Sequence[Value]) -> Value:
        """The element, in `held` of the node's dtype."""
        value = results[-1]
        if self.mean:
            sizes = shape_of(self.source)
            count = body.literal(product(sizes[d] for d in self.dims), self.computed_in)
            value = body.op("div", value, count)
        return body.cast(value, held(dtype_of(self.node)))


def reduction_of(node: Node) -> Reduction | None:
    """None: no reduction, or one of a kind or dtype that loops do not have."""
    make = _KINDS.get(name_of(node))
    if make is None or not is_tensor(node) or not node.args or not is_tensor(node.args[0]):
        return None
    source = node.args[0]
    assert isinstance(source, Node)
    if not {dtype_of(source), dtype_of(node)} <= DTYPES:
        return None
    kind, arithmetic = make
    if kind in ("argmax", "argmin", "max", "min") and dtype_of(source) is torch.bool:
        return None
    rank = len(shape_of(source))
    scan = name_of(node) in _SCANS
    dims = _dims(argument(node, "dim"), rank)
    if scan and rank == 0:
        return None
    computed_in = {
        "result": held(dtype_of(node)),
        "source": held(dtype_of(source)),
        "bool": torch.bool,
    }[arithmetic]
    mean = name_of(node) == "mean"
    return Reduction(
        node, source, dims, bool(argument(node, "keepdim", False)), kind, computed_in, scan, mean
    )


def _dims(given: Any, rank: int) -> tuple[int, ...]:
    """None and an empty list mean all."""
    if given is None or given == []:
        return tuple(range(rank))
    dims = (given,) if isinstance(given, int) else given
    return tuple(sorted({d % max(rank, 1) for d in dims})) if rank else ()


Arithmetic = Literal["result", "source", "bool"]
_KINDS: Mapping[str, tuple[Kind, Arithmetic]] = {
    "sum": ("sum", "result"),
    "mean": ("sum", "result"),
    "prod": ("prod", "result"),
    "amax": ("max", "source"),
    "amin": ("min", "source"),
    "any": ("any", "bool"),
    "all": ("all", "bool"),
    "argmax": ("argmax", "source"),
    "argmin": ("argmin", "source"),
    "cumsum": ("sum", "result"),
    "cumprod": ("prod", "result"),
    "logcumsumexp": ("logsumexp", "source"),
}
_SCANS = ("cumsum", "cumprod", "logcumsumexp")
