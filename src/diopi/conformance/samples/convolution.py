"""Samples of convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from diopi.conformance.samples import Maker, Sample, samples

# Input, weight, groups, and where they are not (1, 0, 1): stride, padding, dilation, output padding.
_Config = tuple[tuple[int, ...], tuple[int, ...], int, dict[str, Any]]

_PLAIN_2D: tuple[_Config, ...] = (
    ((2, 3, 7, 6), (4, 3, 3, 3), 1, {}),
    ((1, 4, 8, 9), (6, 2, 3, 2), 2, {"stride": [2, 1], "padding": [1, 2], "dilation": [1, 2]}),
    ((2, 4, 5, 5), (4, 1, 3, 3), 4, {"padding": [1, 1]}),
    ((2, 5, 6, 6), (7, 5, 1, 1), 1, {}),
    ((1, 3, 17, 19), (8, 3, 5, 3), 1, {"stride": [2, 2], "padding": [2, 1]}),
    ((3, 2, 1, 11), (3, 2, 1, 4), 1, {"stride": [1, 3]}),
)
_PLAIN_3D: tuple[_Config, ...] = (
    ((2, 2, 4, 5, 4), (3, 2, 2, 3, 2), 1, {}),
    ((1, 4, 5, 5, 6), (4, 2, 3, 2, 2), 2, {"stride": [2, 1, 2], "padding": [1, 0, 1]}),
    ((1, 2, 5, 6, 5), (2, 2, 2, 2, 2), 1, {"dilation": [1, 2, 2], "padding": [1, 1, 1]}),
    ((1, 3, 4, 4, 4), (3, 1, 3, 3, 3), 3, {"padding": [1, 1, 1]}),
)
_TRANSPOSED_2D: tuple[_Config, ...] = (
    ((2, 3, 4, 5), (3, 4, 3, 3), 1, {}),
    ((1, 4, 4, 3), (4, 3, 3, 2), 2, {"stride": [2, 3], "padding": [1, 0], "output_padding": [1, 2]}),
    ((2, 2, 4, 4), (2, 3, 2, 3), 1, {"dilation": [2, 2], "padding": [1, 1]}),
    ((1, 3, 5, 6), (3, 1, 4, 4), 3, {"stride": [2, 2], "padding": [1, 1]}),
)
_TRANSPOSED_3D: tuple[_Config, ...] = (
    ((2, 2, 3, 4, 3), (2, 3, 2, 2, 3), 1, {}),
    (
        (1, 4, 3, 3, 2),
        (4, 2, 2, 3, 2),
        2,
        {"stride": [2, 1, 2], "padding": [1, 0, 0], "output_padding": [1, 0, 1]},
    ),
    ((1, 2, 3, 3, 3), (2, 2, 2, 2, 2), 1, {"dilation": [1, 2, 1], "padding": [1, 1, 0]}),
)
_CONFIGURATIONS = {
    "diopiConvolution2d": _PLAIN_2D,
    "diopiConvolution3d": _PLAIN_3D,
    "diopiConvTranspose2d": _TRANSPOSED_2D,
    "diopiConvTranspose3d": _TRANSPOSED_3D,
}


def _attributes(config: _Config, spatial: int, transposed: bool) -> dict[str, Any]:
    given = config[3]
    how = {name: given.get(name, [1] * spatial) for name in ("stride", "dilation")}
    how["padding"] = given.get("padding", [0] * spatial)
    if transposed:
        how["output_padding"] = given.get("output_padding", [0] * spatial)
    return {**how, "groups": config[2]}


def _result_shape(config: _Config, how: dict[str, Any], transposed: bool) -> list[int]:
    shape, weight, groups, _ = config
    sizes = [shape[0], weight[1] * groups if transposed else weight[0]]
    for axis, (pixels, kernel) in enumerate(zip(shape[2:], weight[2:], strict=True)):
        window = how["dilation"][axis] * (kernel - 1) + 1
        if transposed:
            grown = (pixels - 1) * how["stride"][axis] - 2 * how["padding"][axis]
            sizes.append(grown + window + how["output_padding"][axis])
        else:
            sizes.append((pixels + 2 * how["padding"][axis] - window) // how["stride"][axis] + 1)
    return sizes


@samples(*_CONFIGURATIONS)
def convolutions(make: Maker) -> Iterator[Sample]:
    transposed = "Transpose" in make.function
    for number, config in enumerate(_CONFIGURATIONS[make.function]):
        shape, weight, _, _ = config
        how = _attributes(config, len(shape) - 2, transposed)
        channels = _result_shape(config, how, transposed)[1]
        yield {
            "input": make(*shape, low=-2, high=2),
            "weight": make(*weight, low=-1, high=1),
            "bias": make(channels, low=-1, high=1) if number % 2 == 0 else None,
            **how,
        }


@samples(*(f"{name}Backward" for name in _CONFIGURATIONS))
def convolution_gradients(make: Maker) -> Iterator[Sample]:
    transposed = "Transpose" in make.function
    for number, config in enumerate(_CONFIGURATIONS[make.function.removesuffix("Backward")]):
        shape, weight, _, _ = config
        how = _attributes(config, len(shape) - 2, transposed)
        result = _result_shape(config, how, transposed)
        yield {
            "grad_output": make(*result, low=-2, high=2),
            "input": make(*shape, low=-2, high=2),
            "weight": make(*weight, low=-1, high=1),
            "bias_sizes": [result[1]] if number % 2 == 0 else None,
            **how,
        }
