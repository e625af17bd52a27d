"""Products of matrices by the backend `hostgraph`: any shape, any strides, few rows and many, packed weights."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DICP_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "dicp"))
    monkeypatch.setenv("DICP_FALLBACK", "never")
    torch._dynamo.reset()


# Edges of tiles, panels and blocks of every instruction set, and numbers that fit none.
SHAPES = [
    *((1, 1, 1), (1, 64, 48), (1, 577, 49), (2, 193, 17), (3, 16, 96), (4, 5, 7), (4, 400, 130)),
    *((5, 192, 48), (6, 191, 47), (8, 193, 49), (9, 385, 16), (13, 77, 131), (70, 8, 33), (70, 200, 1)),
    *((513, 20, 100), (600, 3, 5)),
]


def operands(m: int, k: int, n: int, layout: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows or columns one behind the other, or neither."""
    random = torch.Generator().manual_seed(m * 31 + k * 7 + n)
    a, b = torch.randn(m, k, generator=random).to(dtype), torch.randn(k, n, generator=random).to(dtype)
    if layout & 1:
        b = b.t().contiguous().t()
    if layout & 2:
        a = a.t().contiguous().t()
    if layout & 4:
        a, b = a.repeat_interleave(2, 1)[:, ::2], b.repeat_interleave(3, 0)[::3]
    return a, b


def worst_error(found: Tensor, a: Tensor, b: Tensor, bias: Tensor | None = None) -> float:
    """In rounding errors of a sum of that length."""
    exact = a.double() @ b.double() + (0 if bias is None else bias.double())
    scale = a.double().abs() @ b.double().abs() + 1
    return float(((found.double() - exact).abs() / scale).max()) / torch.finfo(found.dtype).eps


@pytest.mark.parametrize("layout", [0, 1, 2, 4])
def test_products_of_all_shapes_and_strides(layout: int) -> None:
    pairs = [operands(*shape, layout, torch.float32) for shape in SHAPES]
    biases = [torch.linspace(-1, 1, n) for _, _, n in SHAPES]

    def function(
        pairs: Sequence[tuple[Tensor, Tensor]], biases: Sequence[Tensor]
    ) -> list[tuple[Tensor, Tensor]]:
        return [(a @ b, torch.addmm(bias, a, b)) for (a, b), bias in zip(pairs, biases, strict=True)]

    found = torch.compile(function, backend="hostgraph", fullgraph=True, dynamic=False)(pairs, biases)
    for (a, b), bias, (plain, biased) in zip(pairs, biases, found, strict=True):
        assert worst_error(plain, a, b) < 16, (a.shape, b.shape)
        assert worst_error(biased, a, b, bias) < 16, (a.shape, b.shape)


@pytest.mark.parametrize("layout", [0, 1])
def test_products_of_bfloat16_are_rounded_once(layout: int) -> None:
    pairs = [operands(*shape, layout, torch.bfloat16) for shape in SHAPES]

    def function(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        return [a @ b for a, b in pairs]

    found = torch.compile(function, backend="hostgraph", fullgraph=True, dynamic=False)(pairs)
    for (a, b), result in zip(pairs, found, strict=True):
        assert worst_error(result, a, b) < 1, (a.shape, b.shape)


def test_batches_and_nothing_but_numbers_that_are_not_finite() -> None:
    a, b = torch.randn(3, 7, 20), torch.randn(3, 20, 50)
    b[0, 3, 49], b[1, 4, 0], a[2, 6, 19] = float("inf"), float("nan"), float("-inf")

    def function(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a @ b, b.transpose(1, 2) @ a.transpose(1, 2)

    found = torch.compile(function, backend="hostgraph", fullgraph=True)(a, b)
    torch.testing.assert_close(found, function(a, b), equal_nan=True)


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_packed_weights_follow_those_that_are_changed(rows: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(70, 100), nn.Tanh(), nn.Linear(100, 33, bias=False)).eval()
    x = torch.randn(rows, 70)
    frozen = torch.compile(model, backend="hostgraph", fullgraph=True, options={"freezing": True})
    with torch.no_grad():
        for _ in range(2):
            for _ in range(2):
                torch.testing.assert_close(frozen(x), model(x))
            model[0].weight.mul_(-0.5)
