"""What cards do and the reference does not: Winograd's tiles in backward, half sums between lanes, an optimizer's fused steps."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from verdict_arithmetic import How
from verdict_subjects import SUMS, Draw, subject

Tensor = torch.Tensor
aten = torch.ops.aten
BATCH, CHANNELS, RESULTS, SIZE = 2, 16, 12, 16


# F(3x3, 4x4): a tile of 4x4 of the output's gradient and of 6x6 of the input give 3x3 of the kernel's gradient with 36 products
# instead of 144. The same matrices, the other way round, give 4x4 of a convolution: F(4x4, 3x3).
_INPUT = torch.tensor(
    [
        [4.0, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ]
)
_THREE = torch.tensor([[1.0, 0, 0], [1, 1, 1], [1, -1, 1], [1, 2, 4], [1, -2, 4], [0, 0, 1]])
_FOUR = torch.tensor(
    [[1.0, 0, 0, 0], [1, 1, 1, 1], [1, -1, 1, -1], [1, 2, 4, 8], [1, -2, 4, -8], [0, 0, 0, 1]]
)
_SCALE = torch.tensor([1 / 4, -1 / 6, -1 / 6, 1 / 24, 1 / 24, 1.0]).unsqueeze(1)


def _tiles(x: Tensor, length: int) -> Tensor:
    return x.unfold(2, length, 4).unfold(3, length, 4)


def _both(matrix: Tensor, tiles: Tensor) -> Tensor:
    return matrix @ tiles @ matrix.t()


def _kernel_gradient(grad: Tensor, x: Tensor) -> Tensor:
    inputs = _both(_INPUT, _tiles(functional.pad(x, (1, 1, 1, 1)), 6))
    others = _both(_SCALE * _FOUR, _tiles(grad, 4))
    products = torch.einsum("ncxyij,nkxyij->kcij", inputs, others)
    return _both(_THREE.t(), products)


def _input_gradient(grad: Tensor, weight: Tensor) -> Tensor:
    inputs = _both(_INPUT, _tiles(functional.pad(grad, (1, 1, 1, 1)), 6))
    kernels = _both(_SCALE * _THREE, weight.flip(2, 3))
    products = torch.einsum("nkxyij,kcij->ncxyij", inputs, kernels)
    found = _both(_FOUR.t(), products)
    return found.permute(0, 1, 2, 4, 3, 5).reshape(BATCH, CHANNELS, SIZE, SIZE)


def _convolution_inputs(d: Draw) -> tuple[Any, ...]:
    grad, weight = d.weight(BATCH, RESULTS, SIZE, SIZE), d.weight(RESULTS, CHANNELS, 3, 3)
    x = functional.silu(d.data(BATCH, CHANNELS, SIZE, SIZE))
    return (grad, x, weight, [RESULTS], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True])


@subject("3x3 convolution_backward", aten.convolution_backward.default, _convolution_inputs, *SUMS)
def convolution_backward(
    how: How, grad: Tensor, x: Tensor, weight: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    to_bias = how.sum(grad.transpose(0, 1).reshape(RESULTS, -1), 1)
    if how.online and how.fault is None:
        if how.backwards:  # the tiles counted from the other end
            turned = _kernel_gradient(grad.flip(2, 3), x.flip(2, 3)).flip(2, 3)
            return _input_gradient(grad, weight), turned, to_bias
        return _input_gradient(grad, weight), _kernel_gradient(grad, x), to_bias
    grads, columns = grad.flatten(2), functional.unfold(x, 3, padding=1)
    to_input = functional.fold(how.matmul(weight.flatten(1).t(), grads), (SIZE, SIZE), 3, padding=1)
    flat = grads.transpose(0, 1).reshape(RESULTS, -1), columns.transpose(1, 2).reshape(-1, 9 * CHANNELS)
    return to_input, how.matmul(*flat).view(RESULTS, CHANNELS, 3, 3), to_bias


def _mixed_batch_norm_inputs(d: Draw) -> tuple[Any, ...]:
    """Under autocast: halves beside parameters in float32, and a gradient that came through a ReLU."""
    x, weight = d.data(16, 12, 8, 8), d.gain(12).float()
    _, mean, inverse = torch.native_batch_norm(x.float(), weight, None, None, None, True, 0.1, 1e-5)
    grad = (1 + 0.3 * torch.randn(x.shape, generator=d.generator)) * (
        torch.rand(x.shape, generator=d.generator) < 0.2
    )
    return grad.to(x.dtype), x, weight, None, None, mean, inverse, True, 1e-5, [True, True, True]


@subject(
    "mixed native_batch_norm_backward",
    aten.native_batch_norm_backward.default,
    _mixed_batch_norm_inputs,
    *SUMS,
    "counts one too few",
)
def mixed_batch_norm_backward(
    how: How,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    _m: Any,
    _v: Any,
    mean: Tensor,
    inverse: Tensor,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    rows, grads = (value.transpose(0, 1).reshape(12, -1) for value in (x, grad))
    centred, scale = rows - mean.view(12, 1), inverse.view(12, 1)
    sums = how.sum(grads, 1).view(12, 1), how.sum(how.handed(grads * centred), 1).view(12, 1)
    count = grads.shape[1] - (how.fault == "counts one too few")
    inner = grads - centred * (sums[1] / count * scale * scale) - sums[0] / count
    to_input = inner * (scale * weight.view(12, 1))
    return (
        to_input.view(12, 16, 8, 8).transpose(0, 1),
        sums[1].view(12) * inverse,
        sums[0].view(12),
    )


def _optimizer_inputs(d: Draw) -> tuple[Any, ...]:
    """Parameters that a step takes across zero, as in the first steps of Adam."""
    average, root = d.data(96, 64), d.positive(96, 64)
    parameter = (
        average.float()
        / root.float()
        * 0.0052631578947
        * (1 + 0.3 * torch.randn(96, 64, generator=d.generator))
    )
    return [parameter.to(d.dtype)], [average], [root], [-0.0052631578947]


@subject("_foreach_addcdiv", torch._foreach_addcdiv, _optimizer_inputs)
def foreach_addcdiv(
    how: How, parameters: list[Tensor], averages: list[Tensor], roots: list[Tensor], steps: list[float]
) -> list[Tensor]:
    p, step = parameters[0], torch.tensor(steps[0])
    quotient = averages[0] / roots[0]
    if how.online:  # one rounding for the product and the sum
        return [(p.double() + step.double() * quotient.double()).float()]
    if how.lanes:  # a quotient by a rounded reciprocal
        quotient = averages[0] * (1 / roots[0])
    return [p + (step * averages[0]) / roots[0] if how.backwards else p + step * quotient]
