"""What element-wise functions of the interface mean, where an expression does not say it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from diopi.conformance.references.autograd import input_gradient

_ROUNDING = (None, "trunc", "floor")


def rounding_name(mode: int) -> str | None:
    """`diopiRoundMode_t` as PyTorch names it."""
    return _ROUNDING[mode]


def normalize_gradient(
    grad_output: torch.Tensor, input: torch.Tensor, p: float, axis: int, eps: float
) -> torch.Tensor:
    """The gradient of `F.normalize` with respect to its input."""
    return input_gradient(F.normalize, grad_output, input, p, axis, eps)
