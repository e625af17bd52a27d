"""Samples of normalisations."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from diopi.conformance.samples import Maker, Sample, samples

Tensor = torch.Tensor


def _moments(x: Tensor, axes: list[int], eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation with the reduced dimensions kept, as a forward pass saves them."""
    upcast = x.double()
    mean = upcast.mean(axes, keepdim=True)
    inverse = (upcast.var(axes, unbiased=False, keepdim=True) + eps).rsqrt()
    return mean.to(x.dtype), inverse.to(x.dtype)


def _weights(make: Maker, *shape: int) -> Tensor:
    return make(*shape, low=0.5, high=1.5)


@samples("diopiLayerNorm")
def layer_norms(make: Maker) -> Iterator[Sample]:
    for shape, normalized in (((3, 4, 5), 1), ((3, 4, 5), 2), ((7, 313), 1), ((5,), 1)):
        rows = list(shape[len(shape) - normalized :])
        yield {
            "input": make(*shape, low=-3, high=3),
            "weight": _weights(make, *rows),
            "bias": make(*rows, low=-1, high=1),
            "normalized_shape": rows,
            "eps": 1e-5,
        }
    yield {"input": make(3, 4, 5, low=-3, high=3), "normalized_shape": [4, 5], "eps": 1e-5}
    yield {
        "input": make(2, 9, low=-3, high=3),
        "weight": _weights(make, 9),
        "normalized_shape": [9],
        "eps": 0.1,
    }


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
        yield {
            "grad_output": make(*shape, low=-2, high=2),
            "input": x,
            "weight": _weights(make, *rows) if affine else None,
            "bias": make(*rows, low=-1, high=1) if affine else None,
            "mean": make.laid_out(mean),
            "rstd": make.laid_out(rstd),
            "normalized_shape": rows,
        }


@samples("diopiLayerNormGB")
def layer_norms_from_axis(make: Maker) -> Iterator[Sample]:
    for shape, axis in (((3, 4, 5), 2), ((3, 4, 5), 1), ((7, 313), -1), ((2, 3, 4), 0)):
        rows = shape[axis:]
        yield {
            "input": make(*shape, low=-3, high=3),
            "weight": _weights(make, *rows),
            "bias": make(*rows, low=-1, high=1),
            "eps": 1e-5,
            "begin_norm_axis": axis,
        }


@samples("diopiLayerNormGBBackward")
def layer_norm_gradients_from_axis(make: Maker) -> Iterator[Sample]:
    for shape, axis in (((3, 4, 5), 2), ((3, 4, 5), 1), ((7, 313), -1), ((2, 3, 4), 0)):
        rows = shape[axis:]
        x = make(*shape, low=-3, high=3)
        mean, inverse = _moments(x, list(range(len(shape) - len(rows), len(shape))), 1e-5)
        yield {
            "grad_output": make(*shape, low=-2, high=2),
            "input": x,
            "weight": _weights(make, *rows),
            "bias": make(*rows, low=-1, high=1),
            "running_mean": make.laid_out(mean),
            "running_std": make.laid_out(inverse),
            "begin_norm_axis": axis,
        }


@samples("diopiInstanceNorm")
def instance_norms(make: Maker) -> Iterator[Sample]:
    for shape, axis in (((2, 3, 4, 5), 1), ((2, 4, 5, 3), -1), ((2, 3, 41), 1), ((3, 2, 4, 4, 2), 1)):
        channels = shape[axis]
        yield {
            "input": make(*shape, low=-3, high=3),
            "axis": axis,
            "scale": _weights(make, channels),
            "bias": make(channels, low=-1, high=1),
            "eps": 1e-5,
        }


@samples("diopiInstanceNormBackward")
def instance_norm_gradients(make: Maker) -> Iterator[Sample]:
    for sample in instance_norms(make):
        gradient = make(*sample["input"].shape, low=-2, high=2)
        yield {"grad_output": gradient, **sample}


@samples("diopiGroupNorm")
def group_norms(make: Maker) -> Iterator[Sample]:
    for shape, groups, affine in (
        ((2, 6, 4, 5), 3, True),
        ((2, 6, 7), 1, True),
        ((3, 4, 5, 5), 4, False),
        ((2, 8), 2, True),
    ):
        yield {
            "input": make(*shape, low=-3, high=3),
            "weight": _weights(make, shape[1]) if affine else None,
            "bias": make(shape[1], low=-1, high=1) if affine else None,
            "num_groups": groups,
            "eps": 1e-5,
        }


@samples("diopiGroupNormBackward")
def group_norm_gradients(make: Maker) -> Iterator[Sample]:
    for shape, groups, affine in (
        ((2, 6, 4, 5), 3, True),
        ((2, 6, 7), 1, True),
        ((3, 4, 5, 5), 4, False),
        ((2, 8, 3), 2, True),
    ):
        x = make(*shape, low=-3, high=3)
        mean, rstd = _moments(x.reshape(shape[0], groups, -1), [2], 1e-5)
        yield {
            "grad_output": make(*shape, low=-2, high=2),
            "input": x,
            "weight": _weights(make, shape[1]) if affine else None,
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
        saved = channels if training else 0
        yield {
            "save_mean": make.out(saved),
            "save_invstd": make.out(saved),
            "input": make(*shape, low=-3, high=3),
            "weight": _weights(make, channels) if affine else None,
            "bias": make(channels, low=-1, high=1) if affine else None,
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
            "weight": _weights(make, channels) if affine else None,
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
    return torch.float64 if make.dtype == torch.float64 else torch.float32


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
            "mean": make(channels, low=-1, high=1, dtype=dtype),
            "invstd": make(channels, low=0.5, high=2, dtype=dtype),
            "weight": make(channels, low=0.5, high=1.5, dtype=dtype),
            **flags,
        }


@samples("diopiBatchNormBackwardElemt")
def synchronised_gradients(make: Maker) -> Iterator[Sample]:
    dtype = _stat_dtype(make)
    for number, shape in enumerate(_SHAPES):
        channels = shape[1]
        stats = {
            name: make(channels, low=-2, high=2, dtype=dtype) for name in ("mean", "sum_dy", "sum_dy_xmu")
        }
        yield {
            "grad_out": make(*shape, low=-2, high=2),
            "input": make(*shape, low=-3, high=3),
            **stats,
            "invstd": make(channels, low=0.5, high=2, dtype=dtype),
            "weight": make(channels, low=0.5, high=1.5, dtype=dtype) if number != 2 else None,
            "count": make.index(3, low=10, high=60, dtype=torch.int32),
        }


@samples("diopiBatchNormElemt")
def normalized_elements(make: Maker) -> Iterator[Sample]:
    dtype = _stat_dtype(make)
    for number, shape in enumerate(_SHAPES):
        channels = shape[1]
        yield {
            "input": make(*shape, low=-3, high=3),
            "weight": make(channels, low=0.5, high=1.5, dtype=dtype) if number != 2 else None,
            "bias": make(channels, low=-1, high=1, dtype=dtype) if number != 2 else None,
            "mean": make(channels, low=-1, high=1, dtype=dtype),
            "invstd": make(channels, low=0.5, high=2, dtype=dtype),
            "eps": 2.0**-10,
        }
