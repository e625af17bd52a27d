"""Gradients of distances between stacks of points: common batches, and stacks, points or coordinates that are none."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.device

Shape = tuple[int, ...]

SHAPES: list[tuple[Shape, Shape]] = [
    ((3, 5), (2, 5)),
    ((3, 5), (4, 2, 5)),
    ((4, 3, 5), (2, 5)),
    ((4, 1, 3, 5), (6, 2, 5)),
    ((3, 5), (0, 2, 5)),
    ((0, 3, 5), (2, 5)),
    ((1, 3, 5), (0, 2, 5)),
    ((3, 5), (4, 0, 5)),
    ((4, 0, 5), (2, 5)),
    ((3, 0), (4, 2, 0)),
    ((4, 3, 0), (2, 0)),
]


def points(shape: Shape, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize(("first", "second"), SHAPES)
def test_gradients_are_the_cpus(first: Shape, second: Shape, p: float) -> None:
    grads = []
    for device in ("cpu", "dipu"):
        x1, x2 = (
            points(shape, seed).to(device).requires_grad_() for seed, shape in enumerate((first, second))
        )
        distances = torch.cdist(x1, x2, p)
        distances.backward(points(tuple(distances.shape), 2).to(device))
        grads.append([x.grad.cpu() for x in (x1, x2) if x.grad is not None])
    assert len(grads[0]) == len(grads[1]) == 2
    for got, right in zip(grads[1], grads[0], strict=True):
        assert torch.equal(got, right)


@pytest.mark.parametrize(("first", "second"), SHAPES)
def test_the_operator_gives_the_cpus_shape(first: Shape, second: Shape) -> None:
    x1, x2 = points(first, 0), points(second, 1)
    distances = torch.cdist(x1, x2)
    given = (torch.ones_like(distances), x1, x2, 2.0, distances)
    right = torch.ops.aten._cdist_backward(*given)
    got = torch.ops.aten._cdist_backward(*(x.to("dipu") if isinstance(x, torch.Tensor) else x for x in given))
    assert got.shape == right.shape
    assert torch.equal(got.cpu(), right)
