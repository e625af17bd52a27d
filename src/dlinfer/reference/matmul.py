"""Linear layers, plain and quantised."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dlinfer.interface.checks import upcast_dtype
from dlinfer.interface.kernels import reference
from dlinfer.reference.quantisation import quantised_rows, rounded_to

# ---- plain ----


@reference("linear")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Torch's own, which every device has fast."""
    return F.linear(x, weight, bias)


@reference("transdata")
def transdata(hidden_states: Tensor) -> Tensor:
    """Torch's layout is the plain one already."""
    return hidden_states.clone()


# ---- quantised ----


# Where AWQ checkpoints keep the eight elements of an int32, from its low nibble on.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
PLAIN_ORDER = (0, 1, 2, 3, 4, 5, 6, 7)


@reference("dynamic_quant")
def dynamic_quant(
    x: Tensor, quant_dtype: torch.dtype, quant_granularity: str = "PER_TOKEN"
) -> tuple[Tensor, Tensor]:
    return quantised_rows(x, quant_dtype, whole=quant_granularity == "PER_TENSOR")


def product(a: Tensor, b: Tensor, upcast: torch.dtype) -> Tensor:
    """a times b transposed. Sums of int8 products are exact in float64, and no slower than as integers."""
    inner = torch.float64 if a.dtype == torch.int8 else upcast
    return (a.to(inner) @ b.to(inner).mT).to(upcast)


@reference("linear_w8a8")
def linear_w8a8(
    a: Tensor, b: Tensor, rms_scale: Tensor, linear_scale: Tensor, out_dtype: torch.dtype, bias: Tensor | None
) -> Tensor:
    upcast = upcast_dtype(rms_scale)
    rows = rms_scale.to(upcast).reshape(1 if rms_scale.numel() == 1 else [*a.shape[:-1], 1])
    result = product(a, b, upcast) * rows * linear_scale.to(upcast).reshape(-1)
    if bias is not None:
        result = result + bias.to(upcast)
    return result.to(out_dtype)


@reference("linear_w8a8_static")
def linear_w8a8_static(
    x: Tensor,
    weight: Tensor,
    input_scale: Tensor,
    input_offset: Tensor,
    deq_scale: Tensor,
    out_dtype: torch.dtype,
    quant_bias: Tensor | None,
) -> Tensor:
    upcast = upcast_dtype(x)
    number = (x.to(upcast) / input_scale.to(upcast)).round() + input_offset.to(upcast)
    total = rounded_to(number, torch.int8).to(torch.float64) @ weight.to(torch.float64).mT
    if quant_bias is not None:
        total = total + quant_bias.to(torch.float64)
    return (total.to(upcast) * deq_scale.to(upcast)).to(out_dtype)


@reference("weight_quant_matmul")
def weight_quant_matmul(
    x1: Tensor, x2: Tensor, scale: Tensor, offset: Tensor | None, bias: Tensor | None, group_size: int
) -> Tensor:
    upcast = upcast_dtype(x1)
    weight = restored_weight(x2, scale, offset, group_size, upcast)
    result = x1.to(upcast) @ weight
    if bias is not None:
        result = result + bias.to(upcast)
    return result.to(x1.dtype)


def restored_weight(
    x2: Tensor, scale: Tensor, offset: Tensor | None, group_size: int, upcast: torch.dtype
) -> Tensor:
    """The weight [in, out] as numbers."""
    rows = x2.shape[0]
    groups = rows // group_size if group_size else 1
    awq = offset is not None and offset.dtype == torch.int32
    if x2.dtype == torch.int32:
        number = unpacked(x2, AWQ_ORDER if awq else PLAIN_ORDER)
        number = number if awq else torch.where(number > 7, number - 16, number)
    else:
        number = x2.to(torch.int32)
    number = number.to(upcast).reshape(groups, rows // groups, -1)
    if offset is not None:
        shift = -unpacked(offset, AWQ_ORDER) if awq else offset
        number = number + shift.to(upcast).reshape(groups, 1, -1)
    return (number * scale.to(upcast).reshape(groups, 1, -1)).reshape(rows, -1)


def unpacked(value: Tensor, order: tuple[int, ...]) -> Tensor:
    """[rows, packed] of int32 as [rows, 8 * packed], 0 to 15; nibble number n is element order[n]."""
    shifts = torch.tensor(
        [order.index(element) * 4 for element in range(8)], device=value.device, dtype=torch.int32
    )
    return ((value.unsqueeze(-1) >> shifts) & 15).flatten(-2)
