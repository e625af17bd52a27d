"""Samples of optimizers, gradient clipping and loss scaling."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from diopi.conformance.samples import Maker, Sample, samples

_SHAPES = ((3, 5), (7,), (2, 3, 2, 2), (), (0, 3), (37, 131))


def _step(make: Maker, *shape: int) -> Sample:
    """A parameter and its gradient."""
    return {"param": make(*shape, low=-2, high=2, written=True), "grad": make(*shape, low=-1, high=1)}


def _average(make: Maker, *shape: int, low: float = 0.01, high: float = 1) -> torch.Tensor:
    return make(*shape, low=low, high=high, written=True)


@samples("diopiSgd")
def sgd(make: Maker) -> Iterator[Sample]:
    names = ("momentum", "dampening", "weight_decay", "nesterov")
    numbers = (
        (0.9, 0.0, 0.0, False),
        (0.9, 0.1, 0.01, False),
        (0.9, 0.0, 0.02, True),
        (0.0, 0.0, 0.1, False),
        (0.5, 0.0, 0.0, True),
        (0.99, 0.3, 0.0, False),
    )
    for number, (shape, given) in enumerate(zip(_SHAPES, numbers, strict=True)):
        state = {"buf": _average(make, *shape, low=-1), **_step(make, *shape)}
        yield {**state, "lr": 0.1 / (number + 1), **dict(zip(names, given, strict=True))}
    yield {**_step(make, 3, 5), "lr": 0.01, **dict(zip(names, (0.0, 0.0, 0.0, False), strict=True))}


def _adam_numbers(number: int) -> Sample:
    step, decay = (1, 2, 10, 1000, 1, 3)[number % 6], (0.0, 0.01, 0.1)[number % 3]
    betas = {"beta1": 0.9, "beta2": 0.999}
    return {"lr": 0.01, **betas, "eps": 1e-8 if number else 1e-3, "weight_decay": decay, "step": step}


@samples("diopiAdam", "diopiAdamW")
def adam(make: Maker) -> Iterator[Sample]:
    for number, shape in enumerate(_SHAPES):
        averages = {"exp_avg": _average(make, *shape, low=-1), "exp_avg_sq": _average(make, *shape)}
        sample = {**_step(make, *shape), **averages, **_adam_numbers(number), "amsgrad": False}
        if number % 2:
            sample |= {"max_exp_avg_sq": _average(make, *shape), "amsgrad": True}
        yield sample
    averages = {name: _average(make, 4, 3, low=0, high=0) for name in ("exp_avg", "exp_avg_sq")}
    yield {**_step(make, 4, 3), **averages, **_adam_numbers(0), "amsgrad": False}


@samples("diopiFusedAdamW")
def fused_adamw(make: Maker) -> Iterator[Sample]:
    for number, shapes in enumerate((((3, 5),), ((7,), (2, 3), ()), ((37, 131), (0, 2)), ((4,), (4,)))):
        steps = [torch.tensor(float(index + 3 * number + 1)) for index in range(len(shapes))]
        given = _adam_numbers(number + 1)
        del given["step"]
        sample = {
            "params": [make(*shape, low=-2, high=2, written=True) for shape in shapes],
            "grads": [make(*shape, low=-1, high=1) for shape in shapes],
            "exp_avgs": [_average(make, *shape, low=-1) for shape in shapes],
            "exp_avg_sqs": [_average(make, *shape) for shape in shapes],
            "state_steps": steps,
            "nums": len(shapes),
            **given,
            "amsgrad": number % 2 == 1,
            "maximize": number == 2,
        }
        if sample["amsgrad"]:
            sample["max_exp_avg_sqs"] = [_average(make, *shape) for shape in shapes]
        yield sample


@samples("diopiAdadelta")
def adadelta(make: Maker) -> Iterator[Sample]:
    for number, shape in enumerate(_SHAPES):
        numbers = {"lr": 1.0 / (number + 1), "rho": (0.9, 0.95)[number % 2], "eps": (1e-6, 1e-3)[number % 2]}
        averages = {"square_avg": _average(make, *shape), "acc_delta": _average(make, *shape)}
        yield {**_step(make, *shape), **averages, **numbers, "weight_decay": (0.0, 0.05)[number % 2]}


@samples("diopiRmsprop")
def rmsprop(make: Maker) -> Iterator[Sample]:
    for number, shape in enumerate(_SHAPES):
        numbers = {"lr": 0.01, "alpha": 0.99, "eps": 1e-8, "weight_decay": (0.0, 0.05)[number % 2]}
        sample = {**_step(make, *shape), "square_avg": _average(make, *shape, low=0.2), **numbers}
        sample |= {"momentum": (0.0, 0.9)[number % 3 == 1], "centered": number % 3 == 2}
        if sample["momentum"] or number == 4:
            sample["momentum_buf"] = _average(make, *shape, low=-1)
        if sample["centered"] or number == 4:
            sample["grad_avg"] = _average(make, *shape, low=-0.2, high=0.2)
        yield sample
    grad_avg, momentum_buf = _average(make, 3, 4, low=-0.2, high=0.2), _average(make, 3, 4, low=-1)
    both = {"grad_avg": grad_avg, "momentum_buf": momentum_buf}
    numbers = {"lr": 0.1, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.1, "momentum": 0.5, "centered": True}
    yield {**_step(make, 3, 4), "square_avg": _average(make, 3, 4, low=0.2), **both, **numbers}


@samples("diopiClipGradNorm")
def clip(make: Maker) -> Iterator[Sample]:
    lists = (((3, 5),), ((7,), (2, 3), ()), ((37, 61), (4,)), ((3, 4), (0, 2)), ((5,), (5,)), ((2, 2),))
    norms = ((1.0, 2.0), (0.5, 2.0), (3.0, 2.0), (100.0, 2.0), (0.3, float("inf")), (0.7, 1.0))
    for shapes, (most, norm) in zip(lists, norms, strict=True):
        grads = [make(*shape, low=-2, high=2, written=True) for shape in shapes]
        how = {"max_norm": most, "norm_type": norm, "error_if_nonfinite": norm == 1.0}
        yield {"grads": grads, "num_grads": len(grads), **how}


def _number(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float32)


@samples("diopiAmpForeachNonFiniteCheckAndUnscaleInp")
def unscale(make: Maker) -> Iterator[Sample]:
    spoiled = make(3, 4, written=True)
    spoiled[1, 2] = float("inf")
    lists: tuple[list[torch.Tensor], ...] = (
        [make(3, 5, written=True)],
        [make(7, written=True), make(2, 3, written=True), make(written=True)],
        [make(37, 131, written=True), make(0, 2, written=True)],
        [make(4, written=True), spoiled],
        [],
    )
    for number, grads in enumerate(lists):
        yield {
            "scaled_grads": grads,
            "num_scaled_grads": len(grads),
            "found_inf": _number(float(number == 2)),
            "inv_scale": _number((1 / 1024, 1.0, 0.3, 1 / 65536, 2.0)[number]),
        }


@samples("diopiAmpUpdateScaleInp")
def update_scale(make: Maker) -> Iterator[Sample]:
    if make.dtype != torch.float32:
        return  # the scale of a loss is a float
    for scale, tracker, found, interval in (
        (65536.0, 3, 0, 2000),
        (65536.0, 1999, 0, 2000),
        (65536.0, 5, 1, 2000),
        (3.0e38, 9, 0, 10),
        (1.5, 0, 0, 1),
    ):
        yield {
            "current_scale": _number(scale),
            "growth_tracker": torch.tensor([tracker], dtype=torch.int32),
            "found_inf": _number(float(found)),
            "scale_growth_factor": 2.0,
            "scale_backoff_factor": 0.5,
            "growth_interval": interval,
        }
