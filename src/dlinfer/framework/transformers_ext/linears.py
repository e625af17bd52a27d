"""What replaces single linear layers, or their `forward`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from dlinfer.framework.transformers_ext.kernels import CHECKED
from dlinfer.framework.transformers_ext.projections import Dense, Precision, Quantised, quantised, version_of


class StandIn:
    """Something of dlinfer's that replaces a module's `forward`."""


class RoundedLinear(StandIn):
    """Replaces `forward` of a linear layer whose weight was rounded by the decoder."""

    def __init__(self, weight: Quantised) -> None:
        self.weight = weight

    def __call__(self, input: Tensor) -> Tensor:
        _refuse_gradients(input, "restore(model) first")
        return self.weight(input, CHECKED)


def _refuse_gradients(input: Tensor, otherwise: str) -> None:
    if torch.is_grad_enabled() and input.requires_grad:
        raise RuntimeError(
            f"weights of few bits have no gradients: call the model under torch.no_grad(), or {otherwise}"
        )


class PackedLinear(nn.Module):
    """Replaces a linear layer whose own weight was let go: only the rounded one is left.

    The numbers are buffers, so they move, are copied, pickled and counted with the model. None is called `weight`: a plain
    model must not take one for its own.
    """

    packed: Tensor
    scale: Tensor
    offset: Tensor | None
    bias: Tensor | None

    def __init__(self, weight: Quantised, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.group = weight.group
        for name in ("packed", "scale", "offset", "bias"):
            self.register_buffer(name, None)
        self.hold(weight)

    def hold(self, weight: Quantised) -> None:
        """Takes other memory for its numbers, such as a part of a joined weight."""
        self.packed, self.scale, self.offset = weight.weight, weight.scale, weight.offset
        self.bias = None if weight.bias is None else weight.bias.detach()

    @property
    def held(self) -> Quantised:
        """Its numbers, in the memory that the buffers have."""
        return Quantised(self.packed, self.scale, self.offset, self.bias, self.group)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What `model.to(...)` does: the numbers move. A dtype is for activations, not for scales."""
        before = {name: self._buffers[name] for name in ("scale", "offset")}
        super()._apply(fn, recurse)
        for name, tensor in before.items():
            moved = self._buffers[name]
            if tensor is not None and moved is not None and moved.dtype != tensor.dtype:
                self._buffers[name] = tensor.to(moved.device)
        return self

    def forward(self, input: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]."""
        _refuse_gradients(input, "load it again: its own weights were let go (keep_originals=False)")
        return self.held(input, CHECKED)

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            raise AttributeError(
                "the weight of this layer was let go by optimise(model, ..., keep_originals=False); what reads or changes weights"
                " (resizing embeddings, adapters) must be done before"
            )
        return super().__getattr__(name)

    def extra_repr(self) -> str:
        """Shown by `print(model)`."""
        bits = 8 if self.packed.dtype == torch.int8 else 4
        return f"in_features={self.in_features}, out_features={self.out_features}, bits={bits}, bias={self.bias is not None}"


class Head(StandIn):
    """Replaces `forward` of the last linear layer, whose weight may be tied to the embedding."""

    def __init__(self, linear: nn.Linear, precision: Precision | None) -> None:
        self.linear = linear
        self.precision = precision
        self._weight_read = (0, 0)
        self._rounded: RoundedLinear | None = None

    def __call__(self, input: Tensor) -> Tensor:
        linear = self.linear
        if self.precision is not None:
            return self._in_few_bits()(input)
        autocast = torch.is_autocast_enabled(input.device.type)
        if autocast or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return nn.Linear.forward(linear, input)
        return Dense(linear.weight, linear.bias)(input, CHECKED)

    def _in_few_bits(self) -> RoundedLinear:
        linear = self.linear
        state = (linear.weight.data_ptr(), version_of(linear.weight))
        if self._rounded is None or state != self._weight_read:
            self._rounded = RoundedLinear(rounded_head(linear))
            self._weight_read = state
        return self._rounded


def rounded_head(linear: nn.Linear) -> Quantised:
    """8 bits in any case: its results are compared with each other, not summed up with others."""
    return quantised([linear.weight], linear.bias, "int8")
