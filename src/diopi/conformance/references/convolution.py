"""References of the gradients of convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def convolution_gradients(
    function: Callable[..., torch.Tensor],
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: list[int] | None,
    *how: Any,
) -> tuple[torch.Tensor | None, ...]:
    """Of the input, the weight and, if its size is given, the bias; `how` is what follows the bias in `function`."""
    leaves = [x.detach().requires_grad_() for x in (input, weight)]
    bias = None
    if bias_sizes is not None:
        bias = torch.zeros(bias_sizes, dtype=input.dtype, requires_grad=True)
        leaves.append(bias)
    with torch.enable_grad():
        result = function(leaves[0], leaves[1], bias, *how)
    gradients = torch.autograd.grad(result, leaves, grad_output)
    return (*gradients, None) if bias is None else tuple(gradients)
