"""Samples of normalisations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from diopi.conformance.samples import Maker, Sample, samples

Tensor = torch.Tensor


def _moments(x: Tensor, axes: list[int], eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation with the reduced dimensions kept, as a forward pass saves them."""
    upcast = x.double()
    mean = upcast.mean(axes, keepdim=True)
    inverse = (upcast.var(axes, unbiased=False, keepdim=True) + eps).rsqrt()
    return mean.to(x.dtype), inverse.to(x.dtype)


def _affine(make: Maker, shape: Sequence[int], affine: bool = True) -> dict[str, Tensor | None]:
    if not affine:
        return {"weight": None, "bias": None}
    return {"weight": make(*shape, low=0.5, high=1.5), "bias": make(*shape, low=-1, high=1)}


def _forward(make: Maker, shape: Sequence[int], affine: Sequence[int], **how: Any) -> Sample:
    return {"input": make(*shape, low=-3, high=3), **_affine(make, affine), **how}


@samples("diopiLayerNorm")
def layer_norms(make: Maker) -> Iterator[Sample]:
    for shape, normalized in (((3, 4, 5), 1), ((3, 4, 5), 2), ((7, 313), 1), ((5,), 1)):
        rows = list(shape[len(shape) - normalized :])
        yield _forward(make, shape, rows, normalized_shape=rows, eps=1e-5)
    yield {"input": make(3, 4, 5, low=-3, high=3), "normalized_shape": [4, 5], "eps": 1e-5}
    yield {**_forward(make, (2, 9), (9,), normalized_shape=[9], eps=0.1), "bias": None}


@samples("diopiLayerNormBackward")
def layer_norm_gradients(make: Maker) -> Iterator[Sample]:
    for shape, normalized, affine in (
        ((3, 4, 5), 1, True),
        ((3, 4, 5), 2, True),
        ((7, 313), 1, True),
        ((6, 9), 1, False),
    ):
        rows = list(shape[len(shape) - normalized :])
        x = make(*shape, low=-3, high=3)
        mean, rstd = _moments(x, list(range(len(shape) - normalized, len(shape))), 1e-5)
        given = {"input": x, "grad_output": make(*shape, low=-2, high=2), **_affine(make, rows, affine)}
        yield {**given, "mean": make.laid_out(mean), "rstd": make.laid_out(rstd), "normalized_shape": rows}


_FROM_AXIS = (((3, 4, 5), 2), ((3, 4, 5), 1), ((7, 313), -1), ((2, 3, 4), 0))


@samples("diopiLayerNormGB")
def layer_norms_from_axis(make: Maker) -> Iterator[Sample]:
    for shape, axis in _FROM_AXIS:
        yield _forward(make, shape, shape[axis:], eps=1e-5, begin_norm_axis=axis)


@samples("diopiLayerNormGBBackward")
def layer_norm_gradients_from_axis(make: Maker) -> Iterator[Sample]:
    for shape, axis in _FROM_AXIS:
        rows = shape[axis:]
        x = make(*shape, low=-3, high=3)
        mean, inverse = _moments(x, list(range(len(shape) - len(rows), len(shape))), 1e-5)
        saved = {"running_mean": make.laid_out(mean), "running_std": make.laid_out(inverse)}
        given = {"input": x, "grad_output": make(*shape, low=-2, high=2), **_affine(make, rows)}
        yield {**given, **saved, "begin_norm_axis": axis}


@samples("diopiInstanceNorm")
def instance_norms(make: Maker) -> Iterator[Sample]:
    for shape, axis in (((2, 3, 4, 5), 1), ((2, 4, 5, 3), -1), ((2, 3, 41), 1), ((3, 2, 4, 4, 2), 1)):
        sample = _forward(make, shape, (shape[axis],), axis=axis, eps=1e-5)
        yield {"scale": sample.pop("weight"), **sample}


@samples("diopiInstanceNormBackward")
def instance_norm_gradients(make: Maker) -> Iterator[Sample]:
    for sample in instance_norms(make):
        gradient = make(*sample["input"].shape, low=-2, high=2)
        yield {"grad_output": gradient, **sample}


_GROUPS = (((2, 6, 4, 5), 3, True), ((2, 6, 7), 1, True), ((3, 4, 5, 5), 4, False))


@samples("diopiGroupNorm")
def group_norms(make: Maker) -> Iterator[Sample]:
    for shape, groups, affine in (*_GROUPS, ((2, 8), 2, True)):
        x = make(*shape, low=-3, high=3)
        yield {"input": x, **_affine(make, shape[1:2], affine), "num_groups": groups, "eps": 1e-5}


@samples("diopiGroupNormBackward")
def group_norm_gradients(make: Maker) -> Iterator[Sample]:
    for shape, groups, affine in (*_GROUPS, ((2, 8, 3), 2, True)):
        x = make(*shape, low=-3, high=3)
        mean, rstd = _moments(x.reshape(shape[0], groups, -1), [2], 1e-5)
        yield {
            "grad_output": make(*shape, low=-2, high=2),
            "input": x,
            "weight": make(shape[1], low=0.5, high=1.5) if affine else None,
            "mean": make.laid_out(mean.squeeze(2)),
            "rstd": make.laid_out(rstd.squeeze(2)),
            "num_groups": groups,
        }


def _running(make: Maker, channels: int) -> dict[str, Tensor]:
    return {
        "running_mean": make(channels, low=-1, high=1, written=True),
        "running_var": make.positive(channels, written=True),
    }


@samples("diopiBatchNorm")
def batch_norms(make: Maker) -> Iterator[Sample]:
    for shape, training, affine, tracked in (
        ((4, 3, 4, 5), True, True, True),
        ((4, 3, 4, 5), False, True, True),
        ((6, 5), True, True, True),
        ((3, 4, 7), True, False, False),
        ((3, 4, 7), False, False, True),
        ((2, 3, 3, 4, 2), True, True, True),
        ((2, 3, 17, 19), True, True, True),
    ):
        channels = shape[1]
        yield {
            **{name: make.out(channels if training else 0) for name in ("save_mean", "save_invstd")},
            "input": make(*shape, low=-3, high=3),
            **_affine(make, (channels,), affine),
            **(_running(make, channels) if tracked else {}),
            "training": training,
            "momentum": 0.1,
            "eps": 1e-5,
        }


@samples("diopiBatchNormBackward")
def batch_norm_gradients(make: Maker) -> Iterator[Sample]:
    for shape, training, affine in (
        ((4, 3, 4, 5), True, True),
        ((4, 3, 4, 5), False, True),
        ((6, 5), True, True),
        ((3, 4, 7), True, False),
        ((2, 3, 3, 4, 2), True, True),
        ((2, 3, 17, 19), True, True),
    ):
        x, channels = make(*shape, low=-3, high=3), shape[1]
        mean, inverse = (s.reshape(-1) for s in _moments(x, [i for i in range(x.dim()) if i != 1], 1e-5))
        yield {
            "grad_output": make(*shape, low=-2, high=2),
            "input": x,
            "weight": make(channels, low=0.5, high=1.5) if affine else None,
            "running_mean": make(channels, low=-1, high=1),
            "running_var": make.positive(channels),
            "save_mean": make.laid_out(mean) if training else None,
            "save_invstd": make.laid_out(inverse) if training else None,
            "training": training,
            "eps": 1e-5,
        }


# ---- synchronised batch normalisation: statistics in float32 at least ----

_SHAPES = ((4, 3, 4, 5), (6, 5), (3, 4, 7), (2, 3, 17, 19))


def _stat_dtype(make: Maker) -> torch.dtype:
    return torch.promote_types(make.dtype, torch.float32)


def _statistics(make: Maker, channels: int, **limits: tuple[float, float]) -> dict[str, Tensor]:
    return {
        name: make(channels, low=low, high=high, dtype=_stat_dtype(make))
        for name, (low, high) in limits.items()
    }


@samples("diopiBatchNormStats")
def channel_stats(make: Maker) -> Iterator[Sample]:
    for shape in _SHAPES:
        stats = {name: make.out(shape[1], dtype=_stat_dtype(make)) for name in ("mean", "invstd")}
        yield {**stats, "input": make(*shape, low=-3, high=3), "eps": 1e-5}


@samples("diopiBatchNormGatherStatsWithCounts")
def gathered_stats(make: Maker) -> Iterator[Sample]:
    dtype = _stat_dtype(make)
    for processes, channels, tracked in ((2, 3, True), (4, 5, True), (3, 7, False), (1, 4, True)):
        running = _running(make, channels) if tracked else {}
        yield {
            "mean": make.out(channels, dtype=dtype),
            "invstd": make.out(channels, dtype=dtype),
            "input": make(2, channels, 3),
            "mean_all": make(processes, channels, low=-1, high=1, dtype=dtype),
            "invstd_all": make(processes, channels, low=0.5, high=2, dtype=dtype),
            **running,
            "momentum": 0.125,
            "eps": 2.0**-10,
            "counts": make.index(processes, low=2, high=60).to(dtype),
        }


@samples("diopiBatchNormBackwardReduce")
def reduced_gradients(make: Maker) -> Iterator[Sample]:
    dtype = _stat_dtype(make)
    for number, shape in enumerate(_SHAPES):
        channels, x = shape[1], make(*shape, low=-3, high=3)
        flags = {"input_g": number != 1, "weight_g": number != 2, "bias_g": number != 2}
        names = ("sum_dy", "sum_dy_xmu") * flags["input_g"] + ("grad_weight", "grad_bias") * flags["weight_g"]
        yield {
            **{name: make.out(channels, dtype=dtype) for name in names},
            "grad_out": make(*shape, low=-2, high=2),
            "input": x,
            **_statistics(make, channels, mean=(-1, 1), invstd=(0.5, 2), weight=(0.5, 1.5)),
            **flags,
        }


@samples("diopiBatchNormBackwardElemt")
def synchronised_gradients(make: Maker) -> Iterator[Sample]:
    for number, shape in enumerate(_SHAPES):
        sums = {name: (-2, 2) for name in ("mean", "sum_dy", "sum_dy_xmu")}
        weight = {"weight": (0.5, 1.5)} if number != 2 else {}
        statistics = _statistics(make, shape[1], **sums, **weight, invstd=(0.5, 2))
        given = {"grad_out": make(*shape, low=-2, high=2), "input": make(*shape, low=-3, high=3)}
        yield {**given, **statistics, "count": make.index(3, low=10, high=60, dtype=torch.int32)}


@samples("diopiBatchNormElemt")
def normalized_elements(make: Maker) -> Iterator[Sample]:
    for number, shape in enumerate(_SHAPES):
        x = make(*shape, low=-3, high=3)
        affine = {"weight": (0.5, 1.5), "bias": (-1, 1)} if number != 2 else {}
        statistics = _statistics(make, shape[1], **affine, mean=(-1, 1), invstd=(0.5, 2))
        yield {"input": x, **statistics, "eps": 2.0**-10}
