"""What no vendor's compiler has as an operator, in terms of what all have: beside the standard decompositions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch._ops import OpOverload

from dicp.emitted.windows import adaptive_average_gradient, average_gradient, max_pool

__all__ = ["emitted_decompositions"]

aten = torch.ops.aten
Decompositions = Mapping[torch._ops.OperatorBase, Callable[..., Any]]

_OF_TORCH = (
    aten._adaptive_avg_pool2d,
    aten._native_batch_norm_legit_functional,
    aten.elu,
    aten.embedding_dense_backward,
    aten.linalg_vector_norm,
    aten.max_pool2d_with_indices_backward,
    aten.nll_loss_backward,
    aten.nll_loss_forward,
    aten.prelu,
    aten.upsample_bilinear2d,
    aten.upsample_nearest2d,
)
# What `_foreach_add` and its like do with each tensor of their lists.
_OF_EACH: Mapping[str, Callable[..., Any]] = {
    "abs": torch.abs,
    "add": torch.add,
    "addcdiv": torch.addcdiv,
    "addcmul": torch.addcmul,
    "clamp_max": torch.clamp_max,
    "clamp_min": torch.clamp_min,
    "div": torch.div,
    "exp": torch.exp,
    "lerp": torch.lerp,
    "log": torch.log,
    "maximum": torch.clamp_min,
    "minimum": torch.clamp_max,
    "mul": torch.mul,
    "neg": torch.neg,
    "norm": torch.linalg.vector_norm,
    "pow": torch.pow,
    "reciprocal": torch.reciprocal,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "sqrt": torch.sqrt,
    "sub": torch.sub,
    "tanh": torch.tanh,
}


@cache
def emitted_decompositions() -> Decompositions:
    """A backend leaves out of them what it has conversions of."""
    found: dict[Any, Callable[..., Any]] = dict(get_decompositions(_OF_TORCH))
    for name, function in _OF_EACH.items():
        packet = getattr(aten, f"_foreach_{name}")
        for overload in packet.overloads():
            if not overload.endswith("out"):
                found[getattr(packet, overload)] = _of_each(getattr(packet, overload), function)
    found[aten._adaptive_avg_pool2d_backward.default] = adaptive_average_gradient
    found[aten.avg_pool2d_backward.default] = average_gradient
    found[aten.fmax.default] = _extreme_number(torch.maximum)
    found[aten.fmin.default] = _extreme_number(torch.minimum)
    found[aten.hypot.default] = _hypot
    found[aten.max_pool2d_with_indices.default] = max_pool
    found[aten.native_dropout.default] = _dropout
    found[aten.native_group_norm.default] = _group_norm
    found[aten.repeat.default] = _repeat
    found[aten._scaled_dot_product_flash_attention_for_cpu.default] = _attention
    found[aten._scaled_dot_product_flash_attention_for_cpu_backward.default] = _attention_gradient
    found[aten.std.correction] = _deviation(root=True, both=False)
    found[aten.std_mean.correction] = _deviation(root=True, both=True)
    found[aten.var.correction] = _deviation(root=False, both=False)
    found[aten.var_mean.correction] = _deviation(root=False, both=True)
    return found


def _extreme_number(choose: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Of two numbers; what is not a number loses."""

    def rule(x: Tensor, y: Tensor) -> Tensor:
        x, y = torch.broadcast_tensors(x, y)
        dtype = torch.result_type(x, y)
        x, y = x.to(dtype), y.to(dtype)
        if not dtype.is_floating_point:
            return choose(x, y)
        return torch.where(torch.isnan(x), y, torch.where(torch.isnan(y), x, choose(x, y)))

    return rule


def _hypot(x: Tensor, y: Tensor) -> Tensor:
    """Without an overflow on the way."""
    dtype = torch.result_type(x, y)
    one, other = (value.abs() for value in _wide(x.to(dtype), y.to(dtype)))
    large, small = torch.maximum(one, other), torch.minimum(one, other)
    ratio = small / large.masked_fill(large == 0, 1.0)
    result = large * torch.sqrt(ratio * ratio + 1)
    infinite = (one == math.inf) | (other == math.inf)
    return result.masked_fill(infinite, math.inf).to(dtype)


def _moments(
    x: Tensor, dim: Sequence[int] | None, correction: float | None, keepdim: bool
) -> tuple[Tensor, Tensor]:
    """Variance and mean, half values as float32."""
    dims = list(dim or range(x.dim()))
    [wide] = _wide(x)
    mean = wide.mean(dims, True) if dims else wide
    square = (wide - mean) * (wide - mean)
    total = square.sum(dims, keepdim) if dims else square
    count: Any = 1
    for axis in dims:
        count = count * x.shape[axis]
    left = count - (1 if correction is None else correction)
    if isinstance(left, int | float) and left <= 0:
        left = 0.0
    return total / left, mean if keepdim or not dims else mean.reshape(total.shape)


def _deviation(root: bool, both: bool) -> Callable[..., Any]:
    """Variance or standard deviation, with the mean or alone."""

    def rule(
        x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
    ) -> Any:
        if not x.is_floating_point():
            return NotImplemented
        variance, mean = _moments(x, dim, correction, keepdim)
        spread = (torch.sqrt(variance) if root else variance).to(x.dtype)
        return (spread, mean.to(x.dtype)) if both else spread

    return rule


def _group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    rows: Any,
    channels: Any,
    area: Any,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    grouped = _wide(x)[0].reshape(rows, groups, -1)
    mean = grouped.mean(-1, True)
    centred = grouped - mean
    scale = torch.rsqrt((centred * centred).mean(-1, True) + eps)
    result = (centred * scale).reshape(rows, channels, -1)
    result = result if weight is None else result * weight.to(result.dtype).unsqueeze(-1)
    result = result if bias is None else result + bias.to(result.dtype).unsqueeze(-1)
    return (
        result.reshape(x.shape).to(x.dtype),
        mean.reshape(rows, groups).to(x.dtype),
        scale.reshape(rows, groups).to(x.dtype),
    )


def _of_each(overload: OpOverload, function: Callable[..., Any]) -> Callable[..., Any]:
    """The operator of lists, by the function of one item: lists are walked in step, all else is given to each."""
    names = [argument.name for argument in overload._schema.arguments]
    keywords = {argument.name for argument in overload._schema.arguments if argument.kwarg_only}

    def rule(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        count = next(len(value) for value in given.values() if isinstance(value, list | tuple))
        results = []
        for index in range(count):
            one = {
                name: value[index] if isinstance(value, list | tuple) else value
                for name, value in given.items()
            }
            named = {
                name: one.pop(name) for name in tuple(one) if name in keywords or name in ("value", "alpha")
            }
            try:
                results.append(function(*one.values(), **{k: v for k, v in named.items() if v is not None}))
            except TypeError:  # a form of call that one item does not have
                return NotImplemented
        return results

    return rule


def _dropout(x: Tensor, p: float, train: bool | None) -> Any:
    """What is drawn is drawn by eager PyTorch; without drawing there is nothing to do."""
    if train and p > 0:
        return NotImplemented
    return x.clone(), torch.ones_like(x, dtype=torch.bool)


def _repeat(x: Tensor, repeats: Sequence[int]) -> Tensor:
    shape = [1] * (len(repeats) - x.dim()) + list(x.shape)
    apart = [length for pair in zip([1] * len(shape), shape, strict=True) for length in pair]
    wide = [length for pair in zip(repeats, shape, strict=True) for length in pair]
    result = x.reshape(apart).expand(wide)
    return result.reshape([count * length for count, length in zip(repeats, shape, strict=True)]).clone()


def _wide(*tensors: Tensor) -> list[Tensor]:
    """Half values as float32: attention rounds its result alone."""
    return [x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for x in tensors]


def _scores(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None
) -> tuple[Tensor, float]:
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = torch.matmul(query, key.transpose(-2, -1)) * factor
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device)
        columns = torch.arange(key.shape[-2], device=query.device)
        scores = scores.masked_fill(columns > rows.unsqueeze(-1), -math.inf)
    if mask is not None:
        scores = scores + mask.to(scores.dtype)
    return scores, factor


def _by_rows(x: Tensor) -> Tensor:
    """Heads next to each other in memory, as the eager kernel gives its results."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _dense_like(x: Tensor, like: Tensor) -> Tensor:
    """With the order of dimensions in memory that another tensor of its shape has."""
    order = sorted(range(like.dim()), key=lambda dim: (like.stride(dim), like.dim() - dim), reverse=True)
    back = [order.index(dim) for dim in range(like.dim())]
    return x.permute(order).contiguous().permute(back)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """Attention and the logarithm of each row's sum; rows that may look at nothing are zero."""
    if dropout_p or query.shape[1] != key.shape[1]:
        return NotImplemented
    q, k, v = _wide(query, key, value)
    scores, _ = _scores(q, k, attn_mask, is_causal, scale)
    largest = scores.amax(-1, keepdim=True)
    largest = largest.masked_fill(largest == -math.inf, 0.0)
    powers = torch.exp(scores - largest)
    total = powers.sum(-1, keepdim=True)
    result = torch.matmul(powers / total.masked_fill(total == 0, 1.0), v)
    return _dense_like(result.to(query.dtype), query), (torch.log(total) + largest).squeeze(-1)


def _attention_gradient(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    if dropout_p or query.shape[1] != key.shape[1]:
        return NotImplemented
    given, q, k, v, result = _wide(grad, query, key, value, out)
    scores, factor = _scores(q, k, attn_mask, is_causal, scale)
    weights = torch.exp(scores - logsumexp.unsqueeze(-1).to(scores.dtype))
    weights = weights.masked_fill(scores == -math.inf, 0.0)
    by_weights = torch.matmul(given, v.transpose(-2, -1))
    by_scores = weights * (by_weights - (given * result).sum(-1, keepdim=True)) * factor
    gradients = (
        torch.matmul(by_scores, k),
        torch.matmul(by_scores.transpose(-2, -1), q),
        torch.matmul(weights.transpose(-2, -1), given),
    )
    return tuple(_by_rows(x.to(like.dtype)) for x, like in zip(gradients, (query, key, value), strict=True))
