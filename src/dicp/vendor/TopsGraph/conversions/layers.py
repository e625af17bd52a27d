"""Products, convolutions, pooling, softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Proxy

from dicp.dynamo_bridge.conversion import register_conversion
from dicp.errors import UnsupportedError
from dicp.vendor.TopsGraph.conversions.reductions import TopsReductions

__all__ = ["TopsLayers"]

aten = torch.ops.aten


class TopsLayers(TopsReductions):
    """Images are NCHW."""

    @register_conversion(aten.mm.default)
    def mm(self, x: Proxy, y: Proxy) -> Proxy:
        return self.write("Dot", self.floats(x), self.floats(y))

    @register_conversion(aten.bmm.default)
    def bmm(self, x: Proxy, y: Proxy) -> Proxy:
        return self.write("DotGeneral", self.floats(x), self.floats(y), [[0], [0], [2], [1]])

    def floats(self, x: Proxy) -> Proxy:
        if not self.dtype(x).is_floating_point:
            raise UnsupportedError(f"a product of {self.dtype(x)}")
        return x

    @register_conversion([aten.addmm.default, aten.baddbmm.default])
    def addmm(self, bias: Proxy, x: Proxy, y: Proxy, beta: float = 1, alpha: float = 1) -> Proxy:
        dtype = self.result.dtype
        left, right = self.wide(x), self.wide(y)
        product = self.mm(left, right) if len(self.shape(x)) == 2 else self.bmm(left, right)
        if alpha != 1:
            product = self.write("Mul", product, self.constant(alpha, self.dtype(product)))
        if beta == 0:
            return self.convert(product, dtype)
        added = self.wide(bias)
        if beta != 1:
            added = self.write("Mul", added, self.constant(beta, self.dtype(added)))
        return self.convert(self.write("Add", product, added), dtype)

    @register_conversion([aten._softmax.default, aten._log_softmax.default])
    def softmax(self, x: Proxy, dim: int, half_to_float: bool) -> Proxy:
        if not self.shape(x):
            dim, x = 0, self.reshape(x, [1])
        logarithm = self.target is aten._log_softmax.default
        found = self.write("Softmax", self.wide(x), dim % len(self.shape(x)), True, logarithm, 0.0)
        return self.convert(self.reshape(found, self.result.shape), self.result.dtype)

    @register_conversion(aten.convolution.default)
    def convolution(
        self,
        x: Proxy,
        weight: Proxy,
        bias: Proxy | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
    ) -> Proxy:
        self.floats(x)
        image, kernel, shape = self.as_image(x), self.as_image(weight), image_shape(self.result.shape)
        steps, edges, gaps = two(stride, 1), two(padding, 0), two(dilation, 1)
        if transposed:
            found = self.spread(image, kernel, shape, steps, edges, gaps, groups)
            if bias is not None:
                found = self.write("Add", found, self.by_channel(bias, shape))
        else:
            operands = [image, kernel] if bias is None else [image, kernel, bias]
            pads = [edges[0], edges[0], edges[1], edges[1]]
            found = self.write("Conv2D", operands, groups, "NOTSET", "NCHW", steps, pads, gaps)
        return self.reshape(found, self.result.shape)

    def by_channel(self, values: Proxy, shape: Sequence[int]) -> Proxy:
        return self.write("BroadcastInDim", values, [1], shape=tuple(shape))

    def as_image(self, x: Proxy) -> Proxy:
        if len(self.shape(x)) not in (3, 4):
            raise UnsupportedError(f"a convolution over {len(self.shape(x)) - 2} dimensions")
        return self.reshape(x, image_shape(self.shape(x)))

    def spread(
        self,
        x: Proxy,
        kernel: Proxy,
        shape: Sequence[int],
        steps: Sequence[int],
        edges: Sequence[int],
        gaps: Sequence[int],
        groups: int,
    ) -> Proxy:
        """What a convolution's gradient does, and a transposed one: each element goes to all that the kernel reaches."""
        if groups != 1:
            raise UnsupportedError("a transposed convolution, or the gradient of one, in groups")
        pads = []
        for i in range(2):
            reach = gaps[i] * (self.shape(kernel)[2 + i] - 1)
            low = reach - edges[i]
            wide = (self.shape(x)[2 + i] - 1) * steps[i] + 1
            pads.append([low, shape[2 + i] - wide + reach - low])
        dims = [0, 1, [2, 3], 0, 1, [2, 3], 0, 1, [2, 3]]
        return self.general(x, kernel, dims, [1, 1], pads, steps, gaps, reversed_kernel=True)

    def general(
        self,
        x: Proxy,
        kernel: Proxy,
        dims: Sequence[Any],
        strides: Sequence[int],
        pads: Sequence[Sequence[int]],
        x_dilation: Sequence[int],
        kernel_dilation: Sequence[int],
        *,
        reversed_kernel: bool = False,
    ) -> Proxy:
        turned = [reversed_kernel] * 2
        given = (dims, strides, pads, x_dilation, kernel_dilation, turned, "NOTSET", 1, 1)
        return self.write("Conv", x, kernel, *given, ["DEFAULT", "DEFAULT"])

    @register_conversion(aten.convolution_backward.default)
    def convolution_backward(
        self,
        grad: Proxy,
        x: Proxy,
        weight: Proxy,
        bias_sizes: Sequence[int] | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
        output_mask: Sequence[bool],
    ) -> list[Proxy | None]:
        if transposed or groups != 1:
            raise UnsupportedError("the gradient of a transposed convolution, or of one in groups")
        dy, image, kernel = (self.wide(self.as_image(part)) for part in (grad, x, weight))
        steps, edges, gaps = two(stride, 1), two(padding, 0), two(dilation, 1)
        dtype = self.dtype(grad)
        found: list[Proxy | None] = [None, None, None]
        if output_mask[0]:
            shape = image_shape(self.shape(x))
            spread = self.spread(dy, kernel, shape, steps, edges, gaps, groups)
            found[0] = self.convert(self.reshape(spread, self.shape(x)), dtype)
        if output_mask[1]:
            # Channels are the batch, and the rows of the batch are summed over.
            pads = []
            for i in range(2):
                reach = gaps[i] * (self.shape(kernel)[2 + i] - 1) + 1
                wide = (self.shape(dy)[2 + i] - 1) * steps[i]
                pads.append([edges[i], reach + wide - self.shape(image)[2 + i] - edges[i]])
            dims = [1, 0, [2, 3], 0, 1, [2, 3], 1, 0, [2, 3]]
            kernel_grad = self.general(image, dy, dims, gaps, pads, [1, 1], steps)
            found[1] = self.convert(self.reshape(kernel_grad, self.shape(weight)), dtype)
        if output_mask[2]:
            found[2] = self.convert(self.write("ReduceSum", dy, False, [0, 2, 3]), dtype)
        return found

    @register_conversion(aten.avg_pool2d.default)
    def average_pool(
        self,
        x: Proxy,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0, 0),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Proxy:
        if ceil_mode or divisor_override is not None:
            raise UnsupportedError("pooling that rounds up, or with a divisor of its own")
        size, edges = two(kernel, 1), two(padding, 0)
        steps = two(stride, 1) if stride else size
        rank = len(self.shape(x))
        pads = [edges[0], edges[0], edges[1], edges[1]]
        given = ([rank - 2, rank - 1], size, False, count_include_pad, steps, pads, "NOTSET")
        return self.write("AveragePool", x, *given)


def two(values: Sequence[int], first: int) -> list[int]:
    """For rows and columns; one dimension is an image of a single row."""
    return [first, *values] if len(values) == 1 else list(values)


def image_shape(shape: Sequence[int]) -> list[int]:
    return [*shape[:2], 1, *shape[2:]] if len(shape) == 3 else list(shape)
