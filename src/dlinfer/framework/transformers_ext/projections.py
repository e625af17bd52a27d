"""Linear layers as calls of one operator: plain ones and ones whose weights are stored in 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from dlinfer.framework.transformers_ext.kernels import DecoderKernels

Precision = Literal["int8", "int4"]
Projection = Callable[[Tensor, DecoderKernels], Tensor]
GROUP = 32
"""Inputs that share a scale and an offset in 4 bits."""
_NIBBLES = 8  # elements of 4 bits in an int32
_STEP = 2**16  # elements that are rounded at a time, of small weights


@dataclass(frozen=True, slots=True)
class Dense:
    """A weight as it is."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, states: Tensor, run: DecoderKernels) -> Tensor:
        return run.linear(states, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Quantised:
    """A weight of 8 bits with a scale for each output, or of 4 bits with scales and offsets for groups of inputs."""

    weight: Tensor
    scale: Tensor
    offset: Tensor | None
    bias: Tensor | None
    group: int

    def __call__(self, states: Tensor, run: DecoderKernels) -> Tensor:
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


def quantised(weights: Sequence[Tensor], bias: Tensor | None, precision: Precision) -> Quantised:
    """Weights [out, in] of one input as one weight in few bits. What does not fit into groups of 4-bit elements gets 8 bits."""
    outputs, inputs = sum(weight.shape[0] for weight in weights), weights[0].shape[1]
    if precision == "int4" and inputs % GROUP == 0 and all(w.shape[0] % _NIBBLES == 0 for w in weights):
        return _four_bits(weights, bias)
    stored = weights[0].new_empty([outputs, inputs], dtype=torch.int8)
    scale = weights[0].new_empty([outputs], dtype=torch.float32)
    for rows, some in _slices(weights):
        scale[some] = rows.abs().amax(1).clamp(min=1e-12) / 127
        stored[some] = (rows / scale[some].unsqueeze(1)).round_().clamp_(-127, 127)
    return Quantised(stored.t(), scale, None, bias, 0)


def _slices(weights: Sequence[Tensor]) -> Iterator[tuple[Tensor, slice]]:
    """Rows to be rounded at a time, and where they go. What is needed meanwhile stays small beside the result: between large
    pieces of both the allocator would leave holes, together as large as the model.
    """
    begin = 0
    for weight in weights:
        # Not too many pieces either: each costs a dozen kernels.
        elements = max(_STEP, weight.numel() // 32)
        step = max(elements // weight.shape[1] // _NIBBLES, 1) * _NIBBLES
        for rows in weight.detach().split(step):
            yield rows.float(), slice(begin, begin + len(rows))
            begin += len(rows)


def _four_bits(weights: Sequence[Tensor], bias: Tensor | None) -> Quantised:
    """Elements from -8 to 7; the smallest of a group becomes -8 and the largest 7: (element + offset) * scale."""
    outputs, inputs = sum(weight.shape[0] for weight in weights), weights[0].shape[1]
    stored = weights[0].new_empty([inputs, outputs // _NIBBLES], dtype=torch.int32)
    scale, offset = weights[0].new_empty([2, inputs // GROUP, outputs], dtype=torch.float32).unbind()
    for rows, some in _slices(weights):
        groups = rows.t().unflatten(0, (-1, GROUP))
        low, high = groups.amin(1), groups.amax(1)
        step = ((high - low) / 15).clamp(min=1e-12)
        elements = ((groups - low.unsqueeze(1)) / step.unsqueeze(1)).round_().clamp_(0, 15).flatten(0, 1)
        columns = slice(some.start // _NIBBLES, some.stop // _NIBBLES)
        stored[:, columns] = _side_by_side(elements.to(torch.int32) - 8)
        scale[:, some], offset[:, some] = step, low / step + 8
    return Quantised(stored, scale, offset, bias, GROUP)


def _side_by_side(elements: Tensor) -> Tensor:
    """[in, out] of int32 from -8 to 7 as [in, out / 8], eight of them in each."""
    nibbles = (elements & 15).unflatten(1, (-1, _NIBBLES))
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=elements.device)
    # The nibbles do not overlap: their sum in 64 bits, cut to 32, is all of them side by side.
    packed = (nibbles.to(torch.int64) << shifts).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed)


def joined(parts: Sequence[Quantised]) -> Quantised:
    """Takes `part` back: the outputs of all parts in one weight, in new memory laid out as `quantised` does."""
    first = parts[0]
    if first.weight.dtype == torch.int8:
        weight = torch.cat([part.weight.t() for part in parts]).t()
    else:
        weight = torch.cat([part.weight for part in parts], 1)
    scale = torch.cat([part.scale for part in parts], -1)
    offsets = [part.offset for part in parts if part.offset is not None]
    biases = [part.bias for part in parts if part.bias is not None]
    return Quantised(
        weight,
        scale,
        torch.cat(offsets, 1) if offsets else None,
        torch.cat(biases) if biases else None,
        first.group,
    )


def version_of(weight: Tensor) -> int:
    """How often a weight was written in place, as torch counts it; weights made in inference mode are not counted."""
    return 0 if weight.is_inference() else weight._version


def joined_bias(linears: Sequence[nn.Linear]) -> Tensor | None:
    """One bias for several linear layers of one input, in new memory; None: none has one."""
    if all(linear.bias is None for linear in linears):
        return None
    biases = [
        linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()
        for linear in linears
    ]
    return torch.cat(biases)


def join(linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """One weight and bias for several linear layers of one input. The layers then hold parts of it: no memory is added, and
    whoever writes one writes the other.
    """
    weight, bias = torch.cat([linear.weight.detach() for linear in linears]), joined_bias(linears)
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


def leave_file(module: nn.Module) -> None:
    """Moves parameters out of a checkpoint's file: it is mapped into memory as a whole, and one that lies there keeps it all."""
    for parameter in module.parameters():
        # Only what torch has allocated itself can be resized.
        if not parameter.untyped_storage().resizable():
            parameter.data = parameter.data.clone()
