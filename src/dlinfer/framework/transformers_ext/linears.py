"""What stands in the place of `forward` of single linear layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dlinfer.framework.transformers_ext.kernels import CHECKED
from dlinfer.framework.transformers_ext.projections import Dense, Precision, Quantised, quantised, version_of

__all__ = ["Head", "RoundedLinear", "StandIn"]


class StandIn:
    """Something of dlinfer's in the place of a module's `forward`."""


class RoundedLinear(StandIn):
    """Stands in the place of `forward` of a linear layer whose weight was rounded by the stack."""

    def __init__(self, weight: Quantised) -> None:
        self.weight = weight

    def __call__(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled() and input.requires_grad:
            raise RuntimeError(
                "weights of few bits have no gradients: call the model under torch.no_grad(), or restore(model) first"
            )
        return self.weight(input, CHECKED)


class Head(StandIn):
    """Stands in the place of `forward` of the last linear layer, whose weight may be tied to the embedding."""

    def __init__(self, linear: nn.Linear, precision: Precision | None) -> None:
        self.linear = linear
        self.precision = precision
        self._known = (0, 0)
        self._rounded: RoundedLinear | None = None

    def __call__(self, input: Tensor) -> Tensor:
        linear = self.linear
        if self.precision is not None:
            return self._in_few_bits()(input)
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return nn.Linear.forward(linear, input)
        return Dense(linear.weight, linear.bias)(input, CHECKED)

    def _in_few_bits(self) -> RoundedLinear:
        linear = self.linear
        state = (linear.weight.data_ptr(), version_of(linear.weight))
        if self._rounded is None or state != self._known:
            # 8 bits in any case: its results are compared with each other, not summed up with others.
            self._rounded = RoundedLinear(quantised(linear.weight, linear.bias, "int8"))
            self._known = state
        return self._rounded
