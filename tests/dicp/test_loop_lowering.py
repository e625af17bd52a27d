"""Graphs are lowered to few kernels, which give what eager gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dicp_loop_backend import LoopBackend, use_loops
from torch import Tensor
from torch.nn import functional as F

pytestmark = pytest.mark.unit


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> tuple[LoopBackend, Callable[..., Any]]:
    return use_loops(monkeypatch)


class Checker:
    """Runs a function both ways, also on arguments that it changes."""

    def __init__(self, backend: LoopBackend, compiled: Callable[..., Any]) -> None:
        self.backend, self.compiled = backend, compiled

    def __call__(
        self, function: Callable[..., Any], *arguments: Tensor, dynamic: bool | None = None
    ) -> LoopBackend:
        given = copy.deepcopy(arguments)
        with torch.no_grad():
            expected = function(*given)
            found = self.compiled(function, dynamic=dynamic)(*arguments)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(arguments, given)
        expected = expected if isinstance(expected, tuple) else (expected,)
        found = found if isinstance(found, tuple) else (found,)
        assert [t.stride() for t in found] == [t.stride() for t in expected]
        return self.backend


@pytest.fixture
def check(loops: tuple[LoopBackend, Callable[..., Any]]) -> Checker:
    return Checker(*loops)


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def test_formulas_and_views_are_one_kernel_of_one_loop(check: Checker) -> None:
    backend = check(lambda x: torch.tanh(x) + x.t().contiguous().t() * 2, randn(4, 6))
    (kernel,) = backend.program.kernels
    (nest,) = kernel.nests
    assert not nest.rows
    assert [str(loop.end) for loop in nest.phases[0].parts[0].columns] == ["24"]


def test_softmax_is_one_kernel_that_keeps_a_row(check: Checker) -> None:
    backend = check(lambda x: F.softmax(x, -1), randn(4, 6))
    (nest,) = backend.program.kernels[0].nests
    assert len(backend.program.steps) == 1
    assert len(nest.scratch) == 1


def test_norms_join_what_they_normalise(check: Checker) -> None:
    backend = check(lambda x, w: F.layer_norm(F.gelu(x) * x.sigmoid(), (6,), w), randn(4, 6), randn(6))
    assert backend.launches() == 1


def test_sums_over_columns_have_lanes(check: Checker) -> None:
    backend = check(lambda x: x.sum(0), randn(4, 6))
    assert backend.program.kernels[0].nests[0].lanes


def test_joined_values_are_parts(check: Checker) -> None:
    def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x * cos + torch.cat([-x[..., 4:], x[..., :4]], -1) * sin

    backend = check(rotated, randn(2, 3, 8), randn(3, 8), randn(3, 8))
    (nest,) = backend.program.kernels[0].nests
    assert backend.launches() == 1
    assert len(nest.phases[0].parts) == 2


def test_rows_that_differ_are_nests(check: Checker) -> None:
    backend = check(lambda x, y: F.pad(torch.cat([x, y * 2]), (1, 2)).relu(), randn(4, 6), randn(3, 6))
    assert backend.launches() == 1
    assert len(backend.program.kernels[0].nests) == 2


def test_products_read_transposed_weights_by_strides(check: Checker) -> None:
    backend = check(lambda x, w, b: F.linear(x, w, b).relu() @ w, randn(4, 6), randn(5, 6), randn(5))
    assert backend.products() == 2
    assert backend.calls() == []


def test_what_loops_do_not_have_is_called(check: Checker) -> None:
    backend = check(lambda x: torch.linalg.cholesky(x @ x.t() + 6 * torch.eye(6)) + 1, randn(6, 6))
    assert any("cholesky" in name for name in backend.calls())


def test_inputs_are_stored_to_at_the_end(check: Checker) -> None:
    def step(weight: Tensor, moment: Tensor, gradient: Tensor) -> Tensor:
        moment.mul_(0.9).add_(gradient)
        weight.sub_(moment * 0.1)
        return weight.sum()

    backend = check(step, randn(4, 6), randn(4, 6) + 1, randn(4, 6) * 2)
    assert sum(buffer.written for buffer in backend.program.buffers.values()) == 2


def test_a_swap_reads_before_it_stores(check: Checker) -> None:
    def swap(x: Tensor, y: Tensor) -> Tensor:
        old = x * 1.5
        x.copy_(y.flip(0))
        y.copy_(old)
        return old + y

    check(swap, randn(4, 6), randn(4, 6) + 1)


def test_indices_are_checked(check: Checker) -> None:
    table = randn(4, 6)
    check(lambda w, i: F.embedding(i, w) * 2 + w[i, 1].unsqueeze(-1), table, torch.tensor([[1, 2], [3, 0]]))
    with pytest.raises(IndexError, match="out of bounds"), torch.no_grad():
        check.compiled(lambda w, i: F.embedding(i, w) * 2)(table, torch.tensor([[1, 4]]))


def test_one_program_for_many_shapes(check: Checker) -> None:
    torch._dynamo.reset()
    function = check.compiled(lambda x, y: torch.cat([F.softmax(x, -1) @ x.t(), y], 1) * 2, dynamic=True)
    with torch.no_grad():
        for rows, columns, more in ((4, 6, 3), (7, 5, 2), (3, 9, 8)):
            x, y = randn(rows, columns), randn(rows, more)
            expected = torch.cat([F.softmax(x, -1) @ x.t(), y], 1) * 2
            torch.testing.assert_close(function(x, y), expected)
    assert len(check.backend.programs) == 1


def test_equal_kernels_are_one(check: Checker) -> None:
    def layers(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(4):
            x = F.layer_norm(x @ w, (6,)).relu()
        return x

    backend = check(layers, randn(4, 6), randn(6, 6))
    assert backend.launches() == 4
    assert len(backend.program.kernels) == 1


def test_training(loops: tuple[LoopBackend, Callable[..., Any]]) -> None:
    _, compiled = loops
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3)
    )
    x, y = randn(5, 6), torch.tensor([0, 2, 1, 1, 0])
    gradients = []
    for function in (model, compiled(model)):
        model.zero_grad()
        F.cross_entropy(function(x), y).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*gradients)


def test_a_scan_of_joined_values_has_one_part(check: Checker) -> None:
    check(lambda x, y: torch.cumsum(torch.cat([x, y]).relu() * 2, 0), randn(4), randn(3))


def test_views_that_leave_the_memory_of_an_input_run_eagerly(check: Checker) -> None:
    memory = randn(12)
    check(lambda x: torch.as_strided(x, (4,), (1,), 1) * 2, memory[5:9])


def test_checks_are_called(check: Checker) -> None:
    check(lambda x: torch.linalg.inv(x) + 1, randn(3, 3))
    with pytest.raises(RuntimeError, match="singular"), torch.no_grad():
        check.compiled(lambda x: torch.linalg.inv(x) + 1)(torch.zeros(3, 3))
