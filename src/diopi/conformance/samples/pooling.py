"""Samples of pooling in one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from diopi.conformance.samples import Maker, Sample, samples

# Input, window, and where they are not (the window, 0, 1, False): stride, padding, dilation, ceil_mode.
_Config = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]

_WINDOWS: dict[int, tuple[_Config, ...]] = {
    1: (
        ((2, 3, 11), (3,), {}),
        ((2, 3, 11), (3,), {"stride": [2], "padding": [1]}),
        ((3, 10), (4,), {"stride": [3], "ceil_mode": True}),
        ((1, 2, 31), (2,), {"stride": [1], "dilation": [3]}),
        ((4, 5, 67), (3,), {"stride": [2], "padding": [1], "ceil_mode": True}),
    ),
    2: (
        ((2, 3, 7, 6), (2, 3), {}),
        ((2, 3, 7, 6), (3, 3), {"stride": [2, 1], "padding": [1, 1]}),
        ((3, 8, 7), (3, 2), {"stride": [2, 3], "ceil_mode": True}),
        ((1, 2, 9, 9), (2, 3), {"stride": [1, 2], "dilation": [3, 2], "padding": [0, 1]}),
        ((2, 4, 17, 19), (3, 3), {"stride": [2, 2], "padding": [1, 1], "ceil_mode": True}),
    ),
    3: (
        ((2, 2, 4, 5, 4), (2, 3, 2), {}),
        ((1, 2, 5, 5, 6), (3, 2, 3), {"stride": [2, 1, 2], "padding": [1, 1, 0]}),
        ((2, 5, 4, 5), (2, 2, 3), {"stride": [2, 2, 1], "ceil_mode": True}),
        ((1, 1, 6, 6, 5), (2, 2, 2), {"stride": [1, 2, 1], "dilation": [2, 1, 3]}),
    ),
}
_ADAPTIVE: dict[int, tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]] = {
    1: (((2, 3, 11), (4,)), ((3, 10), (10,)), ((2, 2, 5), (7,)), ((4, 5, 67), (1,))),
    2: (
        ((2, 3, 7, 6), (3, 4)),
        ((2, 3, 5, 5), (1, 1)),
        ((3, 8, 7), (5, 7)),
        ((1, 2, 17, 19), (7, 7)),
        ((1, 2, 3, 3), (5, 4)),
    ),
    3: (
        ((2, 2, 4, 5, 4), (2, 3, 2)),
        ((1, 2, 5, 5, 6), (1, 1, 1)),
        ((2, 5, 4, 5), (3, 4, 2)),
        ((1, 1, 2, 3, 2), (3, 4, 2)),
    ),
}


def _spatial(make: Maker) -> int:
    return next(n for n in (1, 2, 3) if f"{n}d" in make.function)


def _max_windows(make: Maker) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    spatial = _spatial(make)
    for shape, kernel, given in _WINDOWS[spatial]:
        defaults = {"stride": list(kernel), "padding": [0] * spatial, "dilation": [1] * spatial}
        yield shape, {"kernel_size": list(kernel), **defaults, "ceil_mode": False, **given}


def _average_windows(make: Maker) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """Windows without holes; padded elements count in every second one, and sums are divided otherwise in some."""
    for number, (shape, window) in enumerate(_max_windows(make)):
        how = {name: value for name, value in window.items() if name != "dilation"}
        how["count_include_pad"] = number % 2 == 0
        if _spatial(make) > 1:
            how["divisor_override"] = (None, None, 5, None, 3)[number]
        yield shape, how
        if any(how["padding"]):
            yield shape, {**how, "count_include_pad": number % 2 != 0}


def _with_indices(spatial: int, x: torch.Tensor, how: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    window = {name: how[name] for name in names}
    result, indices = getattr(F, f"max_pool{spatial}d")(x.contiguous(), **window, return_indices=True)
    return result, indices


@samples(*(f"diopiMaxPool{n}d{form}" for n in (1, 2, 3) for form in ("", "WithIndices")))
def max_pools(make: Maker) -> Iterator[Sample]:
    for shape, how in _max_windows(make):
        yield {"input": make(*shape), **how}
    shape, how = next(_max_windows(make))
    yield {"input": make(*shape), **how, "stride": []}


@samples(*(f"diopiMaxPool{n}dBackward" for n in (1, 2, 3)))
def max_pool_gradients(make: Maker) -> Iterator[Sample]:
    for shape, how in _max_windows(make):
        x = make(*shape, low=-3, high=3)
        result, indices = _with_indices(_spatial(make), x, how)
        gradient = make(*result.shape, low=-2, high=2)
        yield {"grad_output": gradient, "input": x, **how, "indices": make.laid_out(indices)}


@samples(*(f"diopiAvgPool{n}d" for n in (1, 2, 3)))
def average_pools(make: Maker) -> Iterator[Sample]:
    for shape, how in _average_windows(make):
        yield {"input": make(*shape), **how}


@samples(*(f"diopiAvgPool{n}dBackward" for n in (1, 2, 3)))
def average_pool_gradients(make: Maker) -> Iterator[Sample]:
    for shape, how in _average_windows(make):
        window = [how[name] for name in ("kernel_size", "stride", "padding", "ceil_mode")]
        result = getattr(F, f"avg_pool{_spatial(make)}d")(torch.zeros(shape), *window)
        gradient = make(*result.shape, low=-2, high=2)
        yield {"grad_output": gradient, "input": make(*shape, low=-2, high=2), **how}


@samples(*(f"diopiAdaptiveMaxPool{n}d{form}" for n in (1, 2, 3) for form in ("", "WithIndices")))
@samples(*(f"diopiAdaptiveAvgPool{n}d" for n in (1, 2, 3)))
def adaptive_pools(make: Maker) -> Iterator[Sample]:
    for shape, size in _ADAPTIVE[_spatial(make)]:
        yield {"input": make(*shape), "output_size": list(size)}


@samples(*(f"diopiAdaptiveMaxPool{n}dBackward" for n in (1, 2, 3)))
def adaptive_max_pool_gradients(make: Maker) -> Iterator[Sample]:
    for shape, size in _ADAPTIVE[_spatial(make)]:
        x = make(*shape, low=-3, high=3)
        function = getattr(F, f"adaptive_max_pool{_spatial(make)}d")
        result, indices = function(x.contiguous(), size, return_indices=True)
        gradient = make(*result.shape, low=-2, high=2)
        yield {"grad_output": gradient, "input": x, "indices": make.laid_out(indices)}


@samples(*(f"diopiAdaptiveAvgPool{n}dBackward" for n in (1, 2, 3)))
def adaptive_average_pool_gradients(make: Maker) -> Iterator[Sample]:
    for shape, size in _ADAPTIVE[_spatial(make)]:
        planes = shape[: len(shape) - len(size)]
        yield {"grad_output": make(*planes, *size, low=-2, high=2), "input": make(*shape, low=-2, high=2)}


# ---- the forms that say by a text what they do ----


def _texts(make: Maker) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    spatial = _spatial(make)
    for number, (shape, how) in enumerate(_max_windows(make)):
        how["ksize"] = how.pop("kernel_size")
        for mode in ("max", "avg"):
            if mode == "avg" and number == 3:
                continue  # averages have no holes
            how |= {"mode": mode, "exclusive": number % 2 == 0, "adaptive": False, "output_size": []}
            yield shape, dict(how)
    ones = [1] * spatial
    unused = {"ksize": ones, "stride": ones, "padding": [0] * spatial, "dilation": ones, "ceil_mode": False}
    for number, (shape, size) in enumerate(_ADAPTIVE[spatial][:3]):
        mode = ("avg", "max")[number % 2]
        yield shape, {**unused, "mode": mode, "exclusive": True, "adaptive": True, "output_size": list(size)}


@samples(*(f"diopiPool{n}d" for n in (1, 2, 3)))
def pools_by_text(make: Maker) -> Iterator[Sample]:
    for shape, how in _texts(make):
        yield {"input": make(*shape), **how}


@samples(*(f"diopiPool{n}dBackward" for n in (1, 2, 3)))
def pool_gradients_by_text(make: Maker) -> Iterator[Sample]:
    spatial = _spatial(make)
    for shape, how in _texts(make):
        x = make(*shape, low=-3, high=3)
        indices, upcast = None, x.float().contiguous()
        if how["adaptive"] and how["mode"] == "max":
            pool = getattr(F, f"adaptive_max_pool{spatial}d")
            result, indices = pool(upcast, how["output_size"], return_indices=True)
        elif how["adaptive"]:
            result = getattr(F, f"adaptive_avg_pool{spatial}d")(upcast, how["output_size"])
        elif how["mode"] == "max":
            result, indices = _with_indices(spatial, x, {**how, "kernel_size": how["ksize"]})
        else:
            function = getattr(F, f"avg_pool{spatial}d")
            result = function(upcast, how["ksize"], how["stride"], how["padding"], how["ceil_mode"])
        del how["output_size"]
        saved = None if indices is None else make.laid_out(indices)
        yield {"grad_output": make(*result.shape, low=-2, high=2), "input": x, **how, "indices": saved}
