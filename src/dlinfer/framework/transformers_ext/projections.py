"""Linear layers as calls of one operator: plain ones and ones whose weights are stored in 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from dlinfer.framework.transformers_ext.kernels import Kernels

__all__ = [
    "GROUP",
    "Dense",
    "Precision",
    "Projection",
    "Quantised",
    "join",
    "quantised",
    "separate",
    "together",
    "version_of",
]

Precision = Literal["int8", "int4"]
Projection = Callable[[Tensor, Kernels], Tensor]
GROUP = 32
"""Inputs that share a scale and an offset in 4 bits."""
_NIBBLES = 8  # elements of 4 bits in an int32


@dataclass(frozen=True, slots=True)
class Dense:
    """A weight as it is."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, states: Tensor, run: Kernels) -> Tensor:
        return run.linear(states, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Quantised:
    """A weight of 8 bits with a scale for each output, or of 4 bits with scales and offsets for groups of inputs."""

    weight: Tensor
    scale: Tensor
    offset: Tensor | None
    bias: Tensor | None
    group: int

    def __call__(self, states: Tensor, run: Kernels) -> Tensor:
        return run.weight_quant_matmul(states, self.weight, self.scale, self.offset, self.bias, self.group)

    def part(self, start: int, end: int) -> Quantised:
        """Some of the outputs; a view."""
        packed = 1 if self.weight.dtype == torch.int8 else _NIBBLES
        return Quantised(
            self.weight[:, start // packed : end // packed],
            self.scale[..., start:end],
            None if self.offset is None else self.offset[:, start:end],
            None if self.bias is None else self.bias[start:end],
            self.group,
        )


def quantised(weight: Tensor, bias: Tensor | None, precision: Precision) -> Quantised:
    """A weight [out, in] in few bits. What does not fit into groups of 4-bit elements gets 8 bits."""
    weight = weight.detach()
    if precision == "int4" and weight.shape[1] % GROUP == 0 and weight.shape[0] % _NIBBLES == 0:
        return _four_bits(weight, bias)
    scale = weight.abs().amax(1).float().clamp(min=1e-12) / 127
    stored = (weight.float() / scale.unsqueeze(1)).round_().clamp_(-127, 127).to(torch.int8)
    return Quantised(stored.t(), scale, None, bias, 0)


def _four_bits(weight: Tensor, bias: Tensor | None) -> Quantised:
    """Elements from -8 to 7; the smallest of a group becomes -8 and the largest 7: (element + offset) * scale."""
    groups = weight.float().t().unflatten(0, (-1, GROUP))
    low, high = groups.amin(1), groups.amax(1)
    scale = ((high - low) / 15).clamp(min=1e-12)
    stored = ((groups - low.unsqueeze(1)) / scale.unsqueeze(1)).round_().clamp_(0, 15).to(torch.int32) - 8
    nibbles = (stored.flatten(0, 1) & 15).unflatten(1, (-1, _NIBBLES))
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=weight.device)
    # The nibbles do not overlap: their sum in 64 bits, cut to 32, is all of them side by side.
    packed = (nibbles.to(torch.int64) << shifts).sum(-1)
    packed = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    return Quantised(packed.contiguous(), scale, low / scale + 8, bias, GROUP)


def version_of(weight: Tensor) -> int:
    """How often a weight was written in place, as torch counts it; weights made in inference mode are not counted."""
    return 0 if weight.is_inference() else weight._version


def together(linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """One weight and bias for several linear layers of one input, in new memory."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    if all(linear.bias is None for linear in linears):
        return weight, None
    biases = [
        weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()
        for linear in linears
    ]
    return weight, torch.cat(biases)


def join(linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """`together`, and the layers then hold parts of it: no memory is added, and whoever writes one writes the other."""
    weight, bias = together(linears)
    start = 0
    for linear in linears:
        end = start + linear.out_features
        linear.weight.data = weight[start:end]
        if bias is not None and linear.bias is not None:
            linear.bias.data = bias[start:end]
        start = end
    return weight, bias


def separate(linears: Sequence[nn.Linear]) -> None:
    """Takes `join` back: each layer has its own memory again."""
    for linear in linears:
        linear.weight.data = linear.weight.data.clone()
        if linear.bias is not None:
            linear.bias.data = linear.bias.data.clone()
