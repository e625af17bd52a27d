"""What the backend `hostgraph` computes: near to the exact values, of any dtype, of no elements."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import dicp_accuracy

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DICP_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "dicp"))
    monkeypatch.setenv("DICP_FALLBACK", "never")
    torch._dynamo.reset()


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def check(function: Callable[..., Any], *arguments: Tensor, **options: Any) -> None:
    found = torch.compile(function, backend="hostgraph", fullgraph=True, **options)(*arguments)
    torch.testing.assert_close(found, function(*arguments), equal_nan=True)


def test_functions_are_within_one_and_a_half_units_in_the_last_place() -> None:
    """All exponents and the edges; `benchmarks/dicp_accuracy.py` takes more floats."""
    found = {a.name: a for a in dicp_accuracy.measured("hostgraph", 4_000_037)}
    assert not [a for a in found.values() if a.wrong or a.worst > dicp_accuracy.LIMIT]
    assert all(a.count > 1000 for a in found.values())


def test_what_the_measurement_of_functions_calls_wrong() -> None:
    accuracy = dicp_accuracy.Accuracy("f")
    exact = torch.tensor([1.0, 0.0, float("nan"), 1e-300, float("inf"), 3.0], dtype=torch.float64)
    accuracy.add((exact.float(),), exact.float(), exact)
    assert accuracy.worst < 1e-9 and accuracy.wrong == 0
    got = torch.tensor([1.0 + 2**-22, -0.0, 1.0, 0.0, 3.4e38, 3.0])
    accuracy.add((exact.float(),), got, exact)
    assert (accuracy.worst, accuracy.wrong) == (2, 3)


def test_powers_are_computed_in_the_dtype_of_both() -> None:
    def function(i: Tensor, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        return i**0.5, 2**x, 2.5**i, i**x, x**i, h**2.5, 3**h, i**3, i.to(torch.uint8) ** 2.0

    check(function, torch.arange(1, 6), randn(5), randn(5).abs().bfloat16() + 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_rounded_once(dtype: torch.dtype) -> None:
    a, b, c = randn(9, 40, dtype=dtype), randn(40, 7, dtype=dtype), randn(9, 7, dtype=dtype)
    compiled = torch.compile(
        lambda c, a, b: torch.addmm(c, a, b, beta=0.3, alpha=1.7), backend="hostgraph", fullgraph=True
    )
    exact = torch.addmm(c.double(), a.double(), b.double(), beta=0.3, alpha=1.7)
    torch.testing.assert_close(
        compiled(c, a, b).double(), exact, rtol=0.6 * torch.finfo(dtype).eps, atol=1e-5
    )


def test_the_next_number_of_a_half_is_that_of_its_dtype() -> None:
    check(
        lambda x, y: torch.nextafter(x, y),
        randn(20, dtype=torch.bfloat16),
        randn(20, dtype=torch.bfloat16) * 2,
    )


def test_reductions_of_no_elements() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.sum(0), x.sum(0, True) + 1, y.prod(1), (y.sum(-1) + 2).relu(), y.all(1), x.t() @ x, y.mean(1)

    check(function, torch.empty(0, 4), torch.empty(3, 0))


def test_a_layer_learns_nothing_from_no_rows() -> None:
    layer = torch.nn.Linear(3, 4)
    compiled = torch.compile(layer, backend="hostgraph")
    compiled(torch.empty(0, 3)).sum().backward()
    assert layer.weight.grad is not None and layer.bias.grad is not None
    assert not layer.weight.grad.any() and not layer.bias.grad.any()


def test_an_index_into_nothing_is_an_error() -> None:
    take = torch.compile(lambda i, table: F.embedding(i, table) * 2, backend="hostgraph", dynamic=True)
    assert take(torch.tensor([2]), randn(3, 5000)).shape == (1, 5000)
    assert take(torch.empty(0, dtype=torch.int64), torch.empty(0, 5000)).shape == (0, 5000)
    with pytest.raises(IndexError, match="out of bounds for a dimension with size 0"):
        take(torch.tensor([0, 0]), torch.empty(0, 5000))


def test_small_gradients_of_a_saturated_loss_are_exact() -> None:
    x = torch.tensor([17.0, -17.0, 3.0], requires_grad=True)
    target = torch.tensor([1.0, 1.0, -1.0])
    torch.compile(F.soft_margin_loss, backend="hostgraph")(x, target).backward()
    exact = -target.double() * torch.sigmoid(-target.double() * x.detach().double()) / 3
    assert x.grad is not None
    torch.testing.assert_close(x.grad.double(), exact, rtol=1e-6, atol=0)


def test_a_size_that_a_broadcast_has_shown_to_be_one() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        part = y.chunk(2, 0)[-1]
        return part * x, (part + x).amax(-1, True), part.squeeze(0) + 1

    check(function, randn(2, 5), randn(2, 5), dynamic=True)


def test_results_of_operators_begin_where_their_storage_does() -> None:
    """Those of slice_scatter lie as far behind it as its argument does."""

    def function(x: Tensor) -> Tensor:
        x.mul_(2)
        part = x[:, : x.shape[1] // 2]
        part.add_(1)
        return part

    function_of = torch.compile(function, backend="hostgraph", dynamic=True)
    x, mine = randn(4, 6), randn(4, 6)
    torch.testing.assert_close(function_of(x), function(mine))
    torch.testing.assert_close(x, mine)
