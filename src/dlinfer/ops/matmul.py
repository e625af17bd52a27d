"""Linear layers, plain and quantised."""

# mypy: disable-error-code="empty-body"
# Functions without a body are derived from the schema.

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dlinfer.errors import wrong
from dlinfer.ops.calling import OVERLOADS, derived, explained
from dlinfer.settings import LINEAR_USE_NN_LAYOUT

_linear = OVERLOADS["linear"]
_linear_w8a8 = OVERLOADS["linear_w8a8"]
_linear_w8a8_static = OVERLOADS["linear_w8a8_static"]
_weight_quant_matmul = OVERLOADS["weight_quant_matmul"]

# LMDeploy stores weights [in, out] under this variable, which it reads when it loads them.
_TRANSPOSED = LINEAR_USE_NN_LAYOUT.get_or_default() == "1"


def reduced(value: Tensor, group: str | dist.ProcessGroup | None) -> Tensor:
    """The sum of `value` over the ranks of a group; an empty name is the group of all."""
    if not dist.is_available() or not dist.is_initialized():
        raise wrong(
            "all_reduce", "is set, but torch.distributed has no process group: call init_process_group first"
        )
    if isinstance(group, str):
        # Private: torch resolves names of groups for its own functional collectives only.
        resolve: Any = torch._C._distributed_c10d._resolve_process_group
        group = resolve(group) if group else None
    dist.all_reduce(value, group=group)
    return value


@explained("linear")
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, all_reduce: bool = False, group: str = ""
) -> Tensor:
    """x times weight transposed plus bias, summed over the ranks of a group if asked for."""
    result = _linear(x, weight.t() if _TRANSPOSED else weight, bias)
    return reduced(result, group) if all_reduce else result


@derived
def dynamic_quant(
    x: Tensor, quant_dtype: torch.dtype, quant_granularity: str = "PER_TOKEN"
) -> tuple[Tensor, Tensor]:
    """(quantised x, scales)."""


@explained("linear_w8a8")
def linear_w8a8(
    a: Tensor,
    b: Tensor,
    rms_scale: Tensor | float,
    linear_scale: Tensor | float,
    out_dtype: torch.dtype,
    quant_dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """The product of quantised tensors times their scales, plus bias."""
    scales = [
        torch.tensor([s], dtype=torch.float32, device=a.device) if isinstance(s, (int, float)) else s
        for s in (rms_scale, linear_scale)
    ]
    return _linear_w8a8(a, b.t() if _TRANSPOSED else b, *scales, out_dtype, quant_dtype, bias)


@explained("linear_w8a8_static")
def linear_w8a8_static(
    x: Tensor,
    weight: Tensor,
    input_scale: Tensor,
    input_offset: Tensor,
    deq_scale: Tensor,
    out_dtype: torch.dtype,
    quant_dtype: torch.dtype = torch.int8,
    quant_bias: Tensor | None = None,
) -> Tensor:
    """A linear layer whose activations are quantised with a fixed scale and offset."""
    return _linear_w8a8_static(
        x, weight, input_scale, input_offset, deq_scale, out_dtype, quant_dtype, quant_bias
    )


@explained("weight_quant_matmul")
def weight_quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    offset: Tensor | None = None,
    bias: Tensor | None = None,
    all_reduce: bool = False,
    group_size: int = 0,
) -> Tensor:
    """x1 times a weight of 4 or 8 bits, summed over all ranks if asked for."""
    result = _weight_quant_matmul(x1, x2, scale, offset, bias, group_size)
    return reduced(result, "") if all_reduce else result
