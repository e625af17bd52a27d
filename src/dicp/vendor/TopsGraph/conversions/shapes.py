"""Other shapes of the same elements, and parts of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Proxy

from dicp.dynamo_bridge.conversion import register_conversion
from dicp.vendor.TopsGraph.conversions.pointwise import TopsPointwise

__all__ = ["TopsShapes"]

aten = torch.ops.aten


class TopsShapes(TopsPointwise):
    """Views of ATen are copies here: the compiler decides what is memory of its own."""

    @register_conversion(
        [
            aten.view.default,
            aten._unsafe_view.default,
            aten.reshape.default,
            aten.squeeze.default,
            aten.squeeze.dim,
            aten.squeeze.dims,
            aten.unsqueeze.default,
            aten.flatten.using_ints,
        ]
    )
    def reshaped(self, x: Proxy, *_shape: Any) -> Proxy:
        return self.reshape(x, self.result.shape)

    @register_conversion(aten.permute.default)
    def permute(self, x: Proxy, dims: Sequence[int]) -> Proxy:
        order = self.dims(dims, len(self.shape(x)))
        return x if order == sorted(order) else self.write("Transpose", x, order)

    @register_conversion(aten.transpose.int)
    def transpose(self, x: Proxy, one: int, other: int) -> Proxy:
        order = list(range(len(self.shape(x))))
        if order:
            order[one], order[other] = order[other], order[one]
        return self.permute(x, order) if order else x

    @register_conversion([aten.t.default, aten.numpy_T.default])
    def t(self, x: Proxy) -> Proxy:
        return self.permute(x, list(range(len(self.shape(x))))[::-1]) if self.shape(x) else x

    @register_conversion(aten.expand.default)
    def expand(self, x: Proxy, size: Sequence[int], implicit: bool = False) -> Proxy:
        return self.broadcast_to(x, self.result.shape)

    @register_conversion(aten.slice.Tensor)
    def slice(
        self, x: Proxy, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
    ) -> Proxy:
        return self.part(x, dim % len(self.shape(x)), start, end, step)

    def part(self, x: Proxy, dim: int, start: int | None, end: int | None, step: int = 1) -> Proxy:
        """Elements of one dimension, counted as Python counts."""
        shape = self.shape(x)
        first, limit, stride = slice(start, end, step).indices(shape[dim])
        if (first, limit, stride) == (0, shape[dim], 1):
            return x
        starts, limits, strides = [0] * len(shape), list(shape), [1] * len(shape)
        starts[dim], limits[dim], strides[dim] = first, max(limit, first), stride
        return self.write("Slice", x, starts, limits, strides)

    @register_conversion(aten.select.int)
    def select(self, x: Proxy, dim: int, index: int) -> Proxy:
        length = self.shape(x)[dim]
        first = index % length
        picked = self.part(x, dim % len(self.shape(x)), first, first + 1)
        return self.reshape(picked, self.result.shape)

    @register_conversion(aten.cat.default)
    def cat(self, tensors: Sequence[Proxy], dim: int = 0) -> Proxy:
        dtype = self.result.dtype
        # An empty tensor of one dimension may stand beside any.
        kept = [self.convert(tensor, dtype) for tensor in tensors if self.shape(tensor) != (0,)]
        return self.write("Concatenate", kept, dim % len(self.result.shape)) if len(kept) > 1 else kept[0]

    @register_conversion(aten.stack.default)
    def stack(self, tensors: Sequence[Proxy], dim: int = 0) -> Proxy:
        shape = list(self.result.shape)
        at = dim % len(shape)
        shape[at] = 1
        parts = [self.reshape(self.convert(tensor, self.result.dtype), shape) for tensor in tensors]
        return self.write("Concatenate", parts, at) if len(parts) > 1 else parts[0]

    @register_conversion([aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default])
    def split(self, x: Proxy, _sizes: Any, dim: int = 0) -> list[Proxy]:
        assert self.node is not None
        at = dim % len(self.shape(x))
        parts, first = [], 0
        for value in self.node.meta["val"]:
            parts.append(self.part(x, at, first, first + value.shape[at]))
            first += value.shape[at]
        return parts

    @register_conversion(aten.unbind.int)
    def unbind(self, x: Proxy, dim: int = 0) -> list[Proxy]:
        at = dim % len(self.shape(x))
        shape = [length for index, length in enumerate(self.shape(x)) if index != at]
        return [self.reshape(self.part(x, at, i, i + 1), shape) for i in range(self.shape(x)[at])]
