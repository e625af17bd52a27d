"""Which operators AOTAutograd takes apart: torch's own decompositions, but for those that lose something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._decomp import _core_aten_decompositions_post_autograd, get_decompositions
from torch._ops import OpOverload

__all__ = ["standard_decompositions"]

aten = torch.ops.aten
Decompositions = Mapping[torch._ops.OperatorBase, Callable[..., Any]]

_MORE = (
    aten._log_softmax,
    aten._log_softmax_backward_data,
    aten._softmax,
    aten._softmax_backward_data,
    aten.addcdiv,
    aten.addcmul,
    aten.gelu,
    aten.gelu_backward,
    aten.hardtanh,
    aten.leaky_relu,
    aten.mse_loss,
    aten.native_layer_norm_backward,
    aten.sigmoid_backward,
    aten.silu,
    aten.silu_backward,
    aten.tanh_backward,
)
# Kernels that are better whole than in parts: attention, which never writes its scores, and searches.
_WHOLE = (
    "_scaled_dot_product",
    "_fused_sdp",
    "_efficient_attention",
    "_flash_attention",
    "max_pool2d_with_indices",
    "nll_loss_forward",
    "nll_loss_backward",
    "embedding_dense_backward",
)


@cache
def standard_decompositions() -> Decompositions:
    """Torch's core decompositions but for those that take attention apart, mutate arguments, or draw other random numbers."""
    table: dict[Any, Callable[..., Any]] = dict(_core_aten_decompositions_post_autograd())
    table.update(get_decompositions(_MORE))
    kept = {operator: rule for operator, rule in table.items() if not _stays_whole(operator)}
    kept.update(
        {
            aten._native_batch_norm_legit_no_training.default: _batch_norm_inference,
            aten.native_batch_norm.default: _native_batch_norm,
            aten.native_layer_norm.default: _layer_norm,
        }
    )
    return kept


def _stays_whole(operator: Any) -> bool:
    if not isinstance(operator, OpOverload):
        return True
    # Eager kernels take random numbers from the generator in an order of their own.
    if torch.Tag.nondeterministic_seeded in operator.tags:
        return True
    return operator._schema.name.removeprefix("aten::").startswith(_WHOLE)


def _batch_norm_inference(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Torch's own becomes the operator that updates its statistics in place."""
    opmath = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    shape = [1, -1] + [1] * (x.dim() - 2)
    scale = torch.rsqrt(var.to(opmath) + eps)
    scale = scale if weight is None else scale * weight
    shift = -mean * scale
    shift = shift if bias is None else shift + bias
    empty = x.new_empty((0,))
    return (x.to(opmath) * scale.view(shape) + shift.view(shape)).to(x.dtype), empty, empty


def _native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if training or mean is None or var is None:
        return NotImplemented
    return _batch_norm_inference(x, weight, bias, mean, var, momentum, eps)


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Two sums over the row; torch's goes by way of var_mean."""
    dims = list(range(x.dim() - len(shape), x.dim()))
    half = x.dtype in (torch.float16, torch.bfloat16)
    wider = x.to(torch.float32) if half else x
    mean = wider.mean(dims, True)
    centred = wider - mean
    scale = torch.rsqrt((centred * centred).mean(dims, True) + eps)
    result = centred * scale
    result = result if weight is None else result * weight
    result = result if bias is None else result + bias
    if half:
        return result.to(x.dtype), *(
            (mean, scale)
            if weight is not None and weight.dtype == torch.float32
            else (mean.to(x.dtype), scale.to(x.dtype))
        )
    return result, mean, scale
