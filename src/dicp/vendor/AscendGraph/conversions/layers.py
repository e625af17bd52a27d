"""Convolutions, pooling, lookups of embeddings: operators that GE has whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Proxy

from dicp.dynamo_bridge.conversion import register_conversion
from dicp.errors import UnsupportedError
from dicp.vendor.AscendGraph.conversions.writing import AscendWriter

aten = torch.ops.aten


class LayerConversions(AscendWriter):
    """Images are NCHW. A convolution along one dimension is one over images of a single row."""

    @register_conversion(aten.convolution)
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
        image, kernel = self._images(x, weight)
        shape = self._image_shape(self.result.shape)
        places = self._places(stride, padding, dilation, groups)
        if transposed:
            result = self.in_float32(
                lambda x, w: self.ge("Conv2DBackpropInput", shape, w, x, **places), image, kernel
            )
        elif bias is not None and self.dtype(bias) in (torch.float32, torch.float16):
            result = self.ge("Conv2D", image, kernel, bias, **places)
            bias = None
        else:
            result = self.ge("Conv2D", image, kernel, **places)
        if bias is not None:
            result = self.ge("Add", result, self.reshape(bias, [1, -1, 1, 1]))
        return self.ge("Squeeze", result, axis=[2]) if self.rank(x) == 3 else result

    def _images(self, *given: Proxy) -> list[Proxy]:
        rank = self.rank(given[0])
        if rank == 4:
            return list(given)
        if rank != 3:
            raise UnsupportedError(f"a convolution over {rank - 2} dimensions")
        return [self.ge("Unsqueeze", x, axes=[2]) for x in given]

    @staticmethod
    def _image_shape(shape: Sequence[Any]) -> list[Any]:
        return [*shape[:2], 1, *shape[2:]] if len(shape) == 3 else list(shape)

    @staticmethod
    def _places(
        stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
    ) -> dict[str, Any]:
        """The attributes that all convolutions have; pads are above, below, left, right."""
        (down, across), (high, wide) = ([1, *stride][-2:], [1, *dilation][-2:])
        above, left = [0, *padding][-2:]
        return {
            "strides": [1, 1, down, across],
            "pads": [above, above, left, left],
            "dilations": [1, 1, high, wide],
            "groups": groups,
            "data_format": "NCHW",
        }

    @register_conversion(aten.convolution_backward)
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
        if transposed:
            raise UnsupportedError("the gradient of a transposed convolution")
        one_row = self.rank(x) == 3
        dy, image, kernel = self._images(grad, x, weight)
        places = self._places(stride, padding, dilation, groups)
        found: list[Proxy | None] = [None, None, None]
        if output_mask[0]:
            shape = self.shape(image)
            found[0] = self.in_float32(
                lambda w, dy: self.ge("Conv2DBackpropInput", shape, w, dy, **places), kernel, dy
            )
        if output_mask[1]:
            size = self.shape(kernel)
            found[1] = self.in_float32(
                lambda x, dy: self.ge("Conv2DBackpropFilter", x, size, dy, **places), image, dy
            )
        if output_mask[2]:
            found[2] = self.in_float32(lambda dy: self.ge("ReduceSum", dy, [0, 2, 3], keep_dims=False), dy)
        if one_row:
            found = [
                part if part is None or index == 2 else self.ge("Squeeze", part, axis=[2])
                for index, part in enumerate(found)
            ]
        return found

    @register_conversion(aten.avg_pool2d)
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
        image = x if self.rank(x) == 4 else self.ge("Unsqueeze", x, axes=[0])
        size, edges = _two(kernel), _two(padding)
        steps = _two(stride) if stride else size
        result = self.in_float32(
            lambda x: self.ge(
                "AvgPoolV2",
                x,
                ksize=[1, 1, *size],
                strides=[1, 1, *steps],
                pads=[edges[0], edges[0], edges[1], edges[1]],
                data_format="NCHW",
                ceil_mode=ceil_mode,
                exclusive=not count_include_pad,
                divisor_override=divisor_override or 0,
            ),
            image,
        )
        return result if self.rank(x) == 4 else self.ge("Squeeze", result, axis=[0])  # type: ignore[no-any-return]

    @register_conversion(aten.embedding_dense_backward)
    def embedding_gradient(
        self, grad: Proxy, indices: Proxy, num_weights: Any, padding_idx: int, scale_grad_by_freq: bool
    ) -> Proxy:
        if not isinstance(num_weights, int) or scale_grad_by_freq:
            raise UnsupportedError(
                "a gradient of an embedding whose length is known at the call only, or scaled"
            )
        return self.in_float32(  # type: ignore[no-any-return]
            lambda grad: self.ge(
                "EmbeddingDenseGrad", grad, indices, num_weights=num_weights, padding_idx=padding_idx
            ),
            grad,
        )


def _two(values: Sequence[int]) -> list[int]:
    return [values[0], values[-1]]
