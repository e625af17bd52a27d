"""Comparison with the CPU, call by call: lists of tensors, operands that share memory, results that are no tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torch_dipu  # noqa: F401

Told = Callable[[Callable[[], object]], list[str]]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Told:
    """The lines with a verdict that a call prints while everything is compared."""

    def told(run: Callable[[], object]) -> list[str]:
        capfd.readouterr()
        monkeypatch.setenv("DIPU_AUTOCOMPARE_OPS_LIST", ".*")
        run()
        monkeypatch.delenv("DIPU_AUTOCOMPARE_OPS_LIST")
        return [line.strip() for line in capfd.readouterr().out.splitlines() if line.strip()]

    return told


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(1.0, 7.0).reshape(2, 3).to("dipu")


def test_operands_of_cat(x: torch.Tensor, compared: Told) -> None:
    lines = compared(lambda: torch.cat([x, x], 1))
    assert lines[0] == "dipu_cat_autocompare"
    assert "sizes:[2, 6]" in lines[2]
    assert lines[4:] == ["allclose", "autocompare:    cat tensors: allclose"]


def test_lists_of_tensors(x: torch.Tensor, compared: Told) -> None:
    assert compared(lambda: torch._foreach_add([x, x], 2.0)) == [
        "dipu__foreach_add_scalar_autocompare",
        "autocompare:    _foreach_add.Scalar out: allclose",
        "autocompare:    _foreach_add.Scalar self: allclose",
    ]
    assert compared(lambda: torch._foreach_mul_([x, torch.ones_like(x)], 2.0))[-2:] == [
        "dipu__foreach_mul__scalar_autocompare",
        "autocompare:    _foreach_mul_.Scalar self: allclose",
    ]
    assert x.cpu().tolist() == [[2, 4, 6], [8, 10, 12]]


def test_a_tensor_that_is_read_and_in_the_list_that_is_written(x: torch.Tensor, compared: Told) -> None:
    factor = torch.tensor(3.0).to("dipu")
    assert compared(lambda: torch._foreach_mul_([x, factor], factor)) == [
        "dipu__foreach_mul__tensor_autocompare",
        "autocompare:    _foreach_mul_.Tensor self: allclose",
        "autocompare:    _foreach_mul_.Tensor other: allclose",
    ]
    assert (x.cpu().tolist(), factor.item()) == ([[3, 6, 9], [12, 15, 18]], 9)


@pytest.mark.parametrize("other", [lambda x: x, lambda x: x.view(2, 3), lambda x: x.detach()])
def test_a_tensor_added_to_itself(
    other: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, compared: Told
) -> None:
    lines = compared(lambda: x.add_(other(x)))
    assert lines[0] == "dipu_add__tensor_autocompare"
    assert lines[4:] == [
        "allclose",
        "autocompare:    add_.Tensor self: allclose",
        "autocompare:    add_.Tensor other: allclose",
    ]
    assert x.cpu().tolist() == [[2, 4, 6], [8, 10, 12]]


def test_parts_of_one_memory(x: torch.Tensor, compared: Told) -> None:
    lines = compared(lambda: x[0].copy_(x[1]).add_(x[1]))
    assert not [line for line in lines if "not_allclose" in line]
    assert x.cpu().tolist() == [[8, 10, 12], [4, 5, 6]]


def test_an_operator_that_answers_yes_or_no(x: torch.Tensor, compared: Told) -> None:
    lines = compared(lambda: torch.equal(x, x.clone()))
    assert "autocompare:    equal out: equal (True and True)" in lines
    lines = compared(lambda: torch.equal(x, x + 1))
    assert "autocompare:    equal out: equal (False and False)" in lines


def test_a_difference_is_found(compared: Told) -> None:
    """Sums in another order: on the simulated chip large cancelling numbers give another result than on the CPU."""
    torch.dipu.configure(numerics="reordered")
    try:
        generator = torch.Generator().manual_seed(3)
        big = (torch.randn(1, 4096, generator=generator) * 1e8).to("dipu")
        lines = compared(lambda: torch._foreach_norm([big * 0, big])) + compared(
            lambda: (big - big.mean()).sum()
        )
    finally:
        torch.dipu.configure(numerics="plain")
    assert any("not_allclose (max_diff: " in line for line in lines), lines
