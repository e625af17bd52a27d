"""How operators that loops do not have are made of ones that they have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from dicp.dynamo_bridge.decompositions import standard_decompositions

__all__ = ["loop_decompositions"]

aten = torch.ops.aten
Decompositions = Mapping[torch._ops.OperatorBase, Callable[..., Any]]
HALVES = (torch.float16, torch.bfloat16)


@cache
def loop_decompositions() -> Decompositions:
    """For `Backend.decompositions` of a vendor that compiles loop programs: the standard ones and those of this file."""
    return {**standard_decompositions(), **_OWN, **_FOREACH}


def _opmath(x: Tensor) -> Tensor:
    return x.float() if x.dtype in HALVES else x


def _all_dims(x: Tensor, dim: Sequence[int] | None) -> list[int]:
    return list(dim) if dim else list(range(x.dim()))


# --- moments ---


def _var_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    if not x.dtype.is_floating_point:
        return NotImplemented
    dims = _all_dims(x, dim)
    wide = _opmath(x)
    count: Any = 1
    for d in dims:
        count = count * x.shape[d]
    mean = wide.mean(dims, True)
    centred = wide - mean
    freedom = count - (1 if correction is None else correction)
    if isinstance(freedom, (int, float)) and freedom <= 0:
        return NotImplemented
    var = (centred * centred).sum(dims, keepdim) / freedom
    mean = mean if keepdim else mean.squeeze(dims)
    return var.to(x.dtype), mean.to(x.dtype)


def _var(x: Tensor, dim: Sequence[int] | None = None, **options: Any) -> Tensor:
    result = _var_mean(x, dim, **options)
    return result if result is NotImplemented else result[0]


def _group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    channels: int,
    area: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    wide = _opmath(x).reshape(n, groups, channels // groups, area)
    mean = wide.mean((2, 3), True)
    centred = wide - mean
    scale = torch.rsqrt((centred * centred).mean((2, 3), True) + eps)
    result = centred * scale
    shape = (1, groups, channels // groups, 1)
    result = result if weight is None else result * weight.reshape(shape)
    result = result if bias is None else result + bias.reshape(shape)
    return (
        result.to(x.dtype).reshape(x.shape),
        mean.reshape(n, groups).to(x.dtype),
        scale.reshape(n, groups).to(x.dtype),
    )


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`_native_batch_norm_legit_functional`: (result, mean, inverse deviation, and the new running statistics)."""
    wide, shape = _opmath(x), [1, -1] + [1] * (x.dim() - 2)
    dims = [d for d in range(x.dim()) if d != 1]
    mixed = any(p is not None and p.dtype != x.dtype for p in (weight, bias, running_mean))
    kept = torch.float32 if mixed else x.dtype
    if training:
        mean = wide.mean(dims, True)
        centred = wide - mean
        var = (centred * centred).mean(dims, True)
        scale = torch.rsqrt(var + eps)
        count = x.numel() // x.shape[1]
        unbiased = var.reshape(-1) * (
            count / max(count - 1, 1) if isinstance(count, int) else count / (count - 1)
        )
        new_mean = (mean.reshape(-1) * momentum + running_mean * (1 - momentum)).to(running_mean.dtype)
        new_var = (unbiased * momentum + running_var * (1 - momentum)).to(running_var.dtype)
        saved = mean.reshape(-1).to(kept), scale.reshape(-1).to(kept)
    else:
        scale = torch.rsqrt(_opmath(running_var) + eps).view(shape)
        centred = wide - _opmath(running_mean).view(shape)
        new_mean, new_var = running_mean.clone(), running_var.clone()
        saved = x.new_empty((0,), dtype=kept), x.new_empty((0,), dtype=kept)
    result = centred * scale
    result = result if weight is None else result * weight.view(shape)
    result = result if bias is None else result + bias.view(shape)
    return result.to(x.dtype), *saved, new_mean, new_var


def _batch_norm_with_update(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    result, mean, scale, *running = _batch_norm(
        x, weight, bias, running_mean, running_var, True, momentum, eps
    )
    return result, mean, scale, x.new_empty((0,), dtype=torch.uint8), running[0], running[1]


# --- extremes, norms ---


def _max_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if x.dtype == torch.bool or x.dim() == 0:
        return NotImplemented
    return aten.amax(x, [dim], keepdim), aten.argmax(x, dim, keepdim)


def _min_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if x.dtype == torch.bool or x.dim() == 0:
        return NotImplemented
    return aten.amin(x, [dim], keepdim), aten.argmin(x, dim, keepdim)


def _max(x: Tensor) -> Tensor:
    return NotImplemented if x.dtype == torch.bool else aten.amax(x)


def _min(x: Tensor) -> Tensor:
    return NotImplemented if x.dtype == torch.bool else aten.amin(x)


def _vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    if x.dtype.is_complex or not x.dtype.is_floating_point:
        return NotImplemented
    result = x.dtype if dtype is None else dtype
    wide, dims = _opmath(x.to(result)), _all_dims(x, dim)
    if ord == 2:
        norm = (wide * wide).sum(dims, keepdim).sqrt()
    elif ord == 1:
        norm = wide.abs().sum(dims, keepdim)
    elif ord == 0:
        norm = (wide != 0).to(wide.dtype).sum(dims, keepdim)
    elif ord == float("inf"):
        norm = wide.abs().amax(dims, keepdim)
    elif ord == float("-inf"):
        norm = wide.abs().amin(dims, keepdim)
    else:
        norm = wide.abs().pow(ord).sum(dims, keepdim).pow(1 / ord)
    return norm.to(result)


# --- losses ---


def _soft_margin_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """Torch's subtracts 1 from a sigmoid that may be all but 1."""
    scale = 1 / x.numel() if reduction == 1 else 1
    return -target * grad * torch.sigmoid(-target * x) * scale


# --- products ---


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """A bias for each column stays with the product. Any other is added by a kernel, but not to what was rounded."""
    plain = beta == 1 and alpha == 1 and bias.dim() == 1 and bias.shape[0] == b.shape[1]
    if plain or a.dtype not in (torch.float32, torch.float64) or bias.dtype != a.dtype:
        return NotImplemented
    product = _scaled(torch.mm(a, b), alpha)
    return product if beta == 0 else (product + _scaled(bias, beta)).to(a.dtype)


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


_OWN: Decompositions = {
    aten.var_mean.correction: _var_mean,
    aten.var.correction: _var,
    aten.native_group_norm.default: _group_norm,
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten.max.dim: _max_dim,
    aten.min.dim: _min_dim,
    aten.max.default: _max,
    aten.min.default: _min,
    aten.linalg_vector_norm.default: _vector_norm,
    aten._batch_norm_with_update_functional.default: _batch_norm_with_update,
    aten.soft_margin_loss_backward.default: _soft_margin_loss_backward,
    aten.addmm.default: _addmm,
}


# --- lists of tensors ---


def _each(operator: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    """An operator for each element of lists; what is no list is the same for all."""

    def apply(*given: Any, **options: Any) -> list[Tensor]:
        count = len(given[0])
        columns = [a if isinstance(a, (list, tuple)) else [a] * count for a in given]
        return [operator(*row, **options) for row in zip(*columns, strict=True)]

    return apply


def _add(x: Tensor, y: Any, alpha: float = 1) -> Tensor:
    return torch.add(x, y, alpha=alpha) if isinstance(y, Tensor) else torch.add(x, y)


def _addc(operator: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, a, b, value=1: operator(x, a, b, value=value)


def _minimum(x: Tensor, y: Any) -> Tensor:
    return torch.minimum(x, y) if isinstance(y, Tensor) else torch.clamp_max(x, y)


def _maximum(x: Tensor, y: Any) -> Tensor:
    return torch.maximum(x, y) if isinstance(y, Tensor) else torch.clamp_min(x, y)


_EACH: Mapping[str, Callable[..., Tensor]] = {
    "add": _add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": _maximum,
    "clamp_min": _maximum,
    "minimum": _minimum,
    "clamp_max": _minimum,
    "addcmul": _addc(torch.addcmul),
    "addcdiv": _addc(torch.addcdiv),
    "lerp": torch.lerp,
    "pow": torch.pow,
    "copy": aten.copy.default,
    **{
        name: getattr(torch, name)
        for name in (
            "abs",
            "neg",
            "exp",
            "log",
            "sqrt",
            "rsqrt",
            "reciprocal",
            "sigmoid",
            "tanh",
            "sign",
            "erf",
        )
    },
}


def _foreach_table() -> Decompositions:
    table: dict[torch._ops.OperatorBase, Callable[..., Any]] = {}
    for name, operator in _EACH.items():
        packet = getattr(aten, f"_foreach_{name}", None)
        for overload in () if packet is None else packet.overloads():
            target = getattr(packet, overload)
            if overload.endswith("out") or overload == "ScalarAndTensor" or target._schema.is_mutable:
                continue
            table[target] = _each(operator)
    return table


def _foreach_norm(x: Sequence[Tensor], ord: float = 2, dtype: torch.dtype | None = None) -> list[Tensor]:
    return [torch.linalg.vector_norm(t, ord, dtype=dtype) for t in x]


_FOREACH: Decompositions = {**_foreach_table(), aten._foreach_norm.Scalar: _foreach_norm}
