"""Noise on intermediate values: small, repeatable, and never the cause of a nan."""

from __future__ import annotations

import math

import torch

from op_tools.reference.perturbation import Factors, InnerRoundings


def test_values_move_by_the_size_asked_for_and_the_same_seed_moves_them_the_same_way() -> None:
    value = torch.linspace(1, 2, 4096, dtype=torch.float64)
    moved = Factors(seed=3, size=1e-6).applied(value)
    relative = moved / value - 1
    assert 0.5e-6 < relative.square().mean().sqrt() < 2e-6
    assert torch.equal(moved, Factors(seed=3, size=1e-6).applied(value))
    assert not torch.equal(moved, Factors(seed=4, size=1e-6).applied(value))


def test_infinities_and_zeros_stay_what_they_are() -> None:
    """A mask of -inf inside a composite must not turn every rerun into nan."""
    value = torch.tensor([-math.inf, math.inf, 0.0, -0.0] * 64, dtype=torch.float64)
    for seed in range(4):
        assert torch.equal(Factors(seed, 1e-3).applied(value), value)
    complex_value = torch.complex(value, torch.ones_like(value))
    assert not Factors(0, 1e-3).applied(complex_value).isnan().any()


def test_what_is_not_computed_in_double_precision_is_left_alone() -> None:
    single = torch.ones(4)
    assert Factors(0, 1e-3).applied(single) is single
    assert Factors(0, 1e-3).applied("text") == "text"


def test_rounded_numbers_stay_whole() -> None:
    """A 3 that became 2.9999999 would be stored as 2, and wrong integers would pass as noise."""
    with InnerRoundings(Factors(0, 2**-20)):
        rounded = torch.linspace(-8, 8, 1001, dtype=torch.float64).mul(1.7).round()
    assert torch.equal(rounded, rounded.trunc())
