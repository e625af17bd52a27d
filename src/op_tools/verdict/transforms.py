"""Convolutions by Winograd's transforms: how far their roundings may lie from the exact sums.

A tile of m results of a kernel with r taps takes n = m + r - 1 products instead of m * r, if inputs and kernel are
transformed before they are multiplied (`G`, `B`), and sums of products after (`A`). Libraries do this for small kernels.
The terms that are added up are larger than those of the plain sums and cancel, and so do their roundings not: of a
3x3 kernel's gradient a corner is off by 20 times as much. No moved input shows that, since the exact result is the same.

Each product of one entry of every matrix and an input and a weight is one path to the result, and where paths are rounded by
themselves the variance is the sum of their squares: the same transforms of squared numbers by squared matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import torch
from torch.nn.functional import pad

from op_tools.categories import base_name, bound_arguments
from op_tools.reference.base import Reference

# The longest tiles that libraries transform in single precision, by the length of the kernel. Shorter ones err less.
_TILES = {3: 6, 5: 8}
# Where the polynomials of the transforms are evaluated; the last point is infinity.
_POINTS = (0, 1, -1, 2, -2, Fraction(1, 2), Fraction(-1, 2))
_FACTORS = 2
_FUNCTIONS = frozenset(("conv2d", "convolution", "_convolution", "convolution_backward"))


def transform_variance(call: Reference) -> list[torch.Tensor | None] | None:
    """For each result the variance of its elements in units of the squared rounding; None where no library transforms."""
    found = _Convolution.of(call)
    if found is None:
        return None
    wanted = found.wanted(call)
    return [None if of is None else of(found).mul_(_FACTORS) for of in wanted]


@dataclass(frozen=True)
class _Convolution:
    """One convolution in two dimensions with a square kernel, a stride of 1 and no dilation; the squares of its tensors."""

    x: torch.Tensor
    weight: torch.Tensor
    grad: torch.Tensor | None
    padding: int
    groups: int

    @staticmethod
    def of(call: Reference) -> _Convolution | None:
        if call.func is None or base_name(call.name) not in _FUNCTIONS:
            return None
        given = bound_arguments(call.func, call.args, call.kwargs)
        x, weight, padding = given.get("input"), given.get("weight"), given.get("padding", 0)
        if not isinstance(x, torch.Tensor) or not isinstance(weight, torch.Tensor) or x.dim() != 4:
            return None
        length = int(weight.shape[-1])
        plain = (
            weight.dim() == 4
            and weight.shape[-2] == length
            and length in _TILES
            and not given.get("transposed", False)
            and x.is_floating_point()
        )
        steps = (given.get("stride", 1), given.get("dilation", 1))
        if not plain or any(size != 1 for step in steps for size in _pair(step)):
            return None
        if isinstance(padding, str):
            padding = length // 2 if padding == "same" else 0
        if len(set(_pair(padding))) != 1:
            return None
        grad = given.get("grad_output") if call.grad_outputs is None else call.grad_outputs[0]
        return _Convolution(
            x.double().square(),
            weight.double().square(),
            grad.double().square() if isinstance(grad, torch.Tensor) else None,
            _pair(padding)[0],
            int(given.get("groups", 1)),
        )

    def wanted(self, call: Reference) -> list[Callable[[_Convolution], torch.Tensor] | None]:
        """What each result of the call is: the convolution, a gradient, or (None) a gradient that is a plain sum."""
        if base_name(call.name) == "convolution_backward":
            return [_Convolution.to_input, _Convolution.to_weight, None]
        if call.grad_outputs is None:
            return [_Convolution.results]
        kinds = [_Convolution.to_input, _Convolution.to_weight, None]
        wants = getattr(call, "wants_grad", None)
        return [
            kinds[index] if index < len(kinds) else None for index in (range(3) if wants is None else wants)
        ]

    def results(self) -> torch.Tensor:
        return _either_way(lambda x, w: _sums(x, w, self.padding, self.groups), self.x, self.weight)

    def to_input(self) -> torch.Tensor:
        """The gradient of the input is a convolution of the other gradient with the turned kernel."""
        assert self.grad is not None
        length = self.weight.shape[-1]
        kernel = self.weight.unflatten(0, (self.groups, -1)).transpose(1, 2).flatten(0, 1).flip(2, 3)
        return _either_way(
            lambda grad, w: _sums(grad, w, length - 1 - self.padding, self.groups), self.grad, kernel
        )

    def to_weight(self) -> torch.Tensor:
        """The gradient of the kernel: tiles of the other gradient are the taps, and the kernel is the result."""
        assert self.grad is not None
        length = self.weight.shape[-1]
        return _either_way(
            lambda x, grad: _weight_sums(x, grad, length, self.padding, self.groups), self.x, self.grad
        )


def _pair(value: Any) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return tuple(int(size) for size in (values * 2 if len(values) == 1 else values))


def _either_way(
    of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], left: torch.Tensor, right: torch.Tensor
) -> torch.Tensor:
    """Tiles may be counted from either end, which says what of them is the first and the last result."""
    turned = of(left.flip(2, 3), right.flip(2, 3)).flip(2, 3)
    return torch.maximum(of(left, right), turned)


def _sums(x: torch.Tensor, weight: torch.Tensor, padding: int, groups: int) -> torch.Tensor:
    length = weight.shape[-1]
    tile = _TILES[length]
    step = tile - length + 1
    height, width = (size + 2 * padding - length + 1 for size in x.shape[2:])
    tiles = _transformed(_cut(x, padding, tile, step, (height, width)), _squares(step, length).inputs)
    kernels = _transformed(weight, _squares(step, length).taps).unflatten(0, (groups, -1))
    products = torch.einsum("ngcxyij,gkcij->ngkxyij", tiles.unflatten(1, (groups, -1)), kernels).flatten(1, 2)
    found = _transformed(products, _squares(step, length).results)  # n k x y step step
    return found.transpose(3, 4).flatten(4, 5).flatten(2, 3)[..., :height, :width]


def _weight_sums(x: torch.Tensor, grad: torch.Tensor, length: int, padding: int, groups: int) -> torch.Tensor:
    tile = _TILES[length]
    taps = tile - length + 1
    matrices = _squares(length, taps)
    inputs = _transformed(_cut(x, padding, tile, taps, grad.shape[2:]), matrices.inputs)
    others = _transformed(_cut(grad, 0, taps, taps, grad.shape[2:]), matrices.taps)
    products = torch.einsum(
        "ngcxyij,ngkxyij->gkcij", inputs.unflatten(1, (groups, -1)), others.unflatten(1, (groups, -1))
    )
    return _transformed(products.flatten(0, 1), matrices.results)


def _cut(
    x: torch.Tensor, padding: int, tile: int, step: int, size: torch.Size | tuple[int, int]
) -> torch.Tensor:
    """Tiles that overlap by `tile - step`, as many as `size` results need: n c x y tile tile."""
    ends = [-(-count // step) * step + tile - step - padding for count in size]
    x = pad(x, (padding, ends[1] - x.shape[3], padding, ends[0] - x.shape[2]))
    return x.unfold(2, tile, step).unfold(3, tile, step)


def _transformed(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    return matrix @ x @ matrix.t()


@dataclass(frozen=True)
class _Matrices:
    inputs: torch.Tensor
    taps: torch.Tensor
    results: torch.Tensor


@lru_cache(maxsize=8)
def _squares(results: int, taps: int) -> _Matrices:
    """The squares of the entries of B, G and A for so many results of so many taps (Toom and Cook)."""
    size = results + taps - 1
    points = [Fraction(point) for point in _POINTS[: size - 1]]
    inputs, kernel = [], []
    for point in points:
        others = [other for other in points if other != point]
        scale = Fraction(1)
        for other in others:
            scale *= point - other
        inputs.append([*_polynomial(others), Fraction(0)])
        kernel.append([point**power / scale for power in range(taps)])
    inputs.append(_polynomial(points))
    kernel.append([Fraction(power == taps - 1) for power in range(taps)])
    outputs = [
        [*(point**power for point in points), Fraction(power == results - 1)] for power in range(results)
    ]
    return _Matrices(*(_squared(rows) for rows in (inputs, kernel, outputs)))


def _polynomial(roots: list[Fraction]) -> list[Fraction]:
    """The coefficients of the product of all x - root, the constant first."""
    found = [Fraction(1)]
    for root in roots:
        found = [
            high - root * low for high, low in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)
        ]
    return found


def _squared(rows: list[list[Fraction]]) -> torch.Tensor:
    return torch.tensor([[float(entry) ** 2 for entry in row] for row in rows], dtype=torch.float64)
