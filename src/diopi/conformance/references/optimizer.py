"""One step of each optimizer of the interface, by PyTorch's own form for single tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adadelta import adadelta
from torch.optim.adam import adam
from torch.optim.rmsprop import rmsprop
from torch.optim.sgd import sgd

from diopi.conformance.references.gradients import as_float

Tensors = Sequence[Tensor]


def _floats(numbers: dict[str, float]) -> dict[str, Any]:
    """Arguments that are `float` in C."""
    return {name: as_float(number) for name, number in numbers.items()}


def _counted(step: float) -> Tensor:
    """The number of steps before this one: PyTorch counts it up itself."""
    return torch.tensor(float(step) - 1, dtype=torch.float64)


def _copies(*tensors: Tensor | None) -> list[Any]:
    """A step is written in place; the caller keeps what it has."""
    return [None if tensor is None else tensor.clone() for tensor in tensors]


@torch.no_grad()
def _run(optimizer: Callable[..., None], *state: Tensor | None, **how: Any) -> None:
    """One step of one parameter, in place; a part of its state that is absent is an empty list."""
    optimizer(*([] if tensor is None else [tensor] for tensor in state), foreach=False, **how)


def sgd_step(
    param: Tensor, grad: Tensor, buf: Tensor | None, nesterov: bool, **numbers: float
) -> tuple[Tensor, Tensor | None]:
    """Parameter and momentum after one step."""
    param, buf = _copies(param, buf)
    how: dict[str, Any] = {"nesterov": nesterov, "maximize": False, **numbers}
    with torch.no_grad():
        sgd([param], [grad], [buf], foreach=False, fused=False, **how)
    return param, buf


def _adam(
    *state: Tensor | None, step: float, amsgrad: bool, decoupled: bool, maximize: bool = False, **numbers: Any
) -> None:
    """One step of one parameter, in place; `state`: param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq."""
    _run(
        adam,
        *state,
        _counted(step),
        fused=False,
        capturable=False,
        differentiable=False,
        amsgrad=amsgrad,
        maximize=maximize,
        decoupled_weight_decay=decoupled,
        **numbers,
    )


def adam_step(
    decoupled: bool,
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor | None,
    step: int,
    amsgrad: bool,
    **numbers: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Parameter and averages after the step of this number; Adam, or AdamW if `decoupled`."""
    param, exp_avg, exp_avg_sq, max_exp_avg_sq = _copies(param, exp_avg, exp_avg_sq, max_exp_avg_sq)
    state = (param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq if amsgrad else None)
    _adam(*state, step=step, amsgrad=amsgrad, decoupled=decoupled, **_floats(numbers))
    return param, exp_avg, exp_avg_sq, max_exp_avg_sq


def fused_adamw_step(
    params: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    max_exp_avg_sqs: Tensors | None,
    state_steps: Tensors,
    amsgrad: bool,
    maximize: bool,
    **numbers: float,
) -> tuple[Tensors, Tensors, Tensors, Tensors | None]:
    """All parameters and averages after one step of AdamW, each with a count of its own."""
    params, exp_avgs, exp_avg_sqs = _copies(*params), _copies(*exp_avgs), _copies(*exp_avg_sqs)
    max_exp_avg_sqs = _copies(*max_exp_avg_sqs) if max_exp_avg_sqs else max_exp_avg_sqs
    how: dict[str, Any] = {"amsgrad": amsgrad, "decoupled": True, "maximize": maximize, **numbers}
    for index, state in enumerate(zip(params, grads, exp_avgs, exp_avg_sqs, strict=True)):
        largest = max_exp_avg_sqs[index] if amsgrad and max_exp_avg_sqs else None
        step = round(float(state_steps[index]))  # a count, also where inputs are moved a little
        _adam(*state, largest, step=step, **how)
    return params, exp_avgs, exp_avg_sqs, max_exp_avg_sqs


def adadelta_step(
    param: Tensor, grad: Tensor, square_avg: Tensor, acc_delta: Tensor, **numbers: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Parameter and averages after one step."""
    param, square_avg, acc_delta = _copies(param, square_avg, acc_delta)
    _run(adadelta, param, grad, square_avg, acc_delta, _counted(1), maximize=False, **_floats(numbers))
    return param, square_avg, acc_delta


def rmsprop_step(
    param: Tensor,
    grad: Tensor,
    square_avg: Tensor,
    grad_avg: Tensor | None,
    momentum_buf: Tensor | None,
    centered: bool,
    **numbers: float,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Parameter and averages after one step."""
    param, square_avg, grad_avg, momentum_buf = _copies(param, square_avg, grad_avg, momentum_buf)
    state = (param, grad, square_avg, grad_avg, momentum_buf, _counted(1))
    _run(rmsprop, *state, maximize=False, centered=centered, **_floats(numbers))
    return param, square_avg, grad_avg, momentum_buf


def clipped(grads: Tensors, max_norm: float, norm_type: float) -> tuple[float, list[Tensor]]:
    """The norm of all gradients together, which is a double, and the gradients made no longer than `max_norm`."""
    grads = [grad.float() if grad.dtype.itemsize < 4 else grad.clone() for grad in grads]
    holders = [torch.zeros_like(grad, requires_grad=True) for grad in grads]
    for holder, grad in zip(holders, grads, strict=True):
        holder.grad = grad
    norm = torch.nn.utils.clip_grad_norm_(holders, max_norm, norm_type, foreach=False)
    return float(norm), [holder.grad for holder in holders if holder.grad is not None]


def unscaled(scaled_grads: Tensors, found_inf: Tensor, inv_scale: Tensor) -> tuple[list[Tensor], Tensor]:
    """The gradients without their scale, and whether one of them was not finite."""
    finite = all(bool(torch.isfinite(grad).all()) for grad in scaled_grads)
    factor = inv_scale.reshape(())
    return [grad * factor for grad in scaled_grads], found_inf if finite else torch.ones_like(found_inf)


def next_scale(
    current_scale: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
) -> tuple[Tensor, Tensor]:
    """The scale of the loss and the count of good steps after this one."""
    if bool(found_inf.reshape(())):
        return current_scale * backoff_factor, torch.zeros_like(growth_tracker)
    steps = growth_tracker + 1
    if int(steps.reshape(())) != growth_interval:
        return current_scale, steps
    grown = current_scale * growth_factor
    limit = torch.finfo(torch.float32).max
    too_large = not math.isfinite(float(grown)) or float(grown) > limit
    return current_scale if too_large else grown, torch.zeros_like(growth_tracker)
