"""What the errors of one result say of each other: one element that stands out, a factor and nothing else, one tile, one jump."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from op_tools.categories import Category
from op_tools.reference.recompute import Recomputation
from op_tools.verdict import Verdict, judge_all
from op_tools.verdict.rounding import format_of, unit_in_last_place
from op_tools.verdict.tolerance import Tolerance

pytestmark = pytest.mark.unit

TOLERANCE = Tolerance(1e-5, 1e-5)
HALVES = (torch.bfloat16, torch.float16)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def verdict(result: Any, func: Any, *args: Any, category: Category = "other", **kwargs: Any) -> Verdict:
    return judge_all([result], Recomputation(func, args, kwargs), category=category, tolerance=TOLERANCE)[0]


def gradient_verdict(result: Any, func: Any, args: tuple[Any, ...], grad: Any, index: int = 0) -> Verdict:
    reference = Recomputation(func, args, {}, grad_outputs=[grad], wants_grad=[index])
    return judge_all([result], reference, category="other", tolerance=TOLERANCE)[0]


def moved(right: torch.Tensor, index: int, units: float) -> torch.Tensor:
    """`right` with one element off by so many units in its last place."""
    form = format_of(right.dtype)
    assert form is not None
    wrong = right.clone().reshape(-1)
    value = wrong[index].double().reshape(1)
    wrong[index] = (value + units * unit_in_last_place(value, form)).to(right.dtype)[0]
    return wrong.view(right.shape)


# --- one element ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", [8, -8, 12])
def test_one_element_of_sums_that_is_off_stands_out_inside_the_bounds(units: int) -> None:
    x, rows, index = drawn(32, 48), drawn(128, 48, seed=1), torch.arange(128) % 32
    exact = x.double().index_add(0, index, rows.double()).float()
    wrong = moved(exact, int(exact.abs().argmax()), units)
    assert verdict(exact, torch.index_add, x, 0, index, rows).ok
    found = verdict(wrong, torch.index_add, x, 0, index, rows)
    assert found.status == "fail" and "stands out" in found.reason
    assert found.error_over_bound < 1


def test_one_flipped_bit_of_a_wide_sum_is_found() -> None:
    x = drawn(200, 331)
    right = x.double().logsumexp(1).float()
    wrong = right.clone()
    wrong.view(torch.int32)[77] ^= 1 << 3
    assert verdict(right, torch.logsumexp, x, 1, category="reduction").ok
    assert verdict(wrong, torch.logsumexp, x, 1, category="reduction").status == "fail"


def test_an_element_that_is_off_among_copied_gradients_is_found() -> None:
    x, grad = drawn(37, 113), drawn(37, 113, seed=1)
    right = grad * (x > 0)
    assert gradient_verdict(right, torch.relu, (x,), grad).ok
    wrong = moved(right, int(right.abs().argmax()), 8)
    assert gradient_verdict(wrong, torch.relu, (x,), grad).status == "fail"


def chained(a: torch.Tensor, b: torch.Tensor, block: int) -> torch.Tensor:
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(0, a.shape[1], block):
        total = total + a[:, k : k + block] @ b[k : k + block]
    return total


@pytest.mark.parametrize("block", [1, 7, 64])
@pytest.mark.parametrize("regime", ["normal", "wide", "cancelling"])
def test_tails_that_data_make_do_not_stand_out(block: int, regime: str) -> None:
    """Rows of other sizes, and sums that cancel: their largest errors are far from the others, and right."""
    for seed in range(6):
        a, b = drawn(32, 256, seed=seed), drawn(256, 40, seed=seed + 50)
        if regime == "wide":
            a, b = (
                a * (2 * drawn(32, 256, seed=seed + 100)).exp(),
                b * (2 * drawn(256, 1, seed=seed + 150)).exp(),
            )
        elif regime == "cancelling":
            b[128:] = -b[:128]
            a[:, 128:] = a[:, :128] * (1 + 2.0**-10 * drawn(32, 128, seed=seed + 200))
        found = verdict(chained(a, b, block), torch.mm, a, b, category="matmul")
        assert found.ok, (seed, found.reason)


def test_convolution_by_larger_tiles_and_by_fft_does_not_stand_out() -> None:
    """Their errors follow the tile or the whole image, and not the element."""
    for seed in range(4):
        x, weight = drawn(2, 8, 16, 16, seed=seed), drawn(6, 8, 3, 3, seed=seed + 10)
        x = x * (1.5 * drawn(2, 8, 1, 16, seed=seed + 20)).exp()
        size = 18
        spectra = torch.fft.rfft2(x, s=(size, size)).unsqueeze(1) * torch.fft.rfft2(
            weight.flip(-1, -2), s=(size, size)
        )
        by_fft = torch.fft.irfft2(spectra.sum(2), s=(size, size))[..., 1:17, 1:17].contiguous()
        found = verdict(by_fft, functional.conv2d, x, weight, None, 1, 1, category="matmul")
        assert "stands out" not in found.reason, (seed, found.reason)


def test_a_formula_that_cancels_in_a_tail_is_no_outlier() -> None:
    """The farthest element of a tail may be off by more than all others together: the formula's absolute error allows it."""
    x = drawn(37, 113) * 4
    right = 0.5 * torch.tanh(0.5 * x) + 0.5
    assert verdict(right, torch.sigmoid, x, category="elementwise").ok
    half = x.bfloat16() * 4
    right = (0.5 * torch.tanh(0.5 * half.float()) + 0.5).bfloat16()
    assert verdict(right, torch.sigmoid, half, category="elementwise").status in ("pass", "same")


# --- factors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("units", [2, -2])
def test_a_factor_of_running_sums_in_halves_is_no_lower_precision(dtype: torch.dtype, units: int) -> None:
    x = drawn(24, 1000, dtype=dtype)
    right = x.float().cumsum(1).to(dtype)
    wrong = (right.double() * (1 + units * torch.finfo(dtype).eps)).to(dtype)
    assert verdict(right, torch.cumsum, x, 1, category="reduction").ok
    found = verdict(wrong, torch.cumsum, x, 1, category="reduction")
    assert found.status == "fail"


def test_running_sums_that_stick_in_halves_are_still_lower_precision() -> None:
    """Adding small numbers to a large one in bfloat16 loses them: all sums are too small, but by no common factor."""
    x = drawn(24, 400).abs().add(0.5).bfloat16()
    columns = [x[:, 0]]
    for column in x.unbind(1)[1:]:
        columns.append(columns[-1] + column)
    found = verdict(torch.stack(columns, 1), torch.cumsum, x, 1, category="reduction")
    assert "common factor" not in found.reason


@pytest.mark.parametrize("units", [8, -8])
def test_a_factor_of_a_few_sums_is_found(units: int) -> None:
    """The bias gradient of a convolution has as many elements as there are channels."""
    x, weight, bias = drawn(2, 4, 12, 12), drawn(8, 4, 3, 3, seed=1), drawn(8, seed=2)
    grad = drawn(2, 8, 10, 10, seed=3) + 1
    right = grad.double().sum((0, 2, 3))
    args = (x, weight, bias)
    assert gradient_verdict(right.float(), functional.conv2d, args, grad, 2).ok
    wrong = (right * (1 + units * 2.0**-23)).float()
    found = gradient_verdict(wrong, functional.conv2d, args, grad, 2)
    assert found.status == "fail" and "common factor" in found.reason


def test_a_factor_beside_overflow_is_no_lower_precision() -> None:
    """Infinities are right, and tell nothing of the factor."""
    a, b = drawn(48, 700) * 64, drawn(700, 40, seed=1) * 64
    a, b = a.half(), b.half()
    right = (a.float() @ b.float()).half()
    assert 0.2 < float(right.isinf().float().mean()) < 0.9
    wrong = (right.float() * (1 + 2.0**-9)).half()
    assert verdict(right, torch.mm, a, b, category="matmul").ok
    assert verdict(wrong, torch.mm, a, b, category="matmul").status == "fail"


def test_a_small_factor_is_not_taken_for_cut_off_inputs() -> None:
    a, b = drawn(30, 24).exp(), drawn(24, 30, seed=1).exp()
    wrong = ((a.double() @ b.double()) * (1 - 2.0**-16)).float()
    found = verdict(wrong, torch.mm, a, b, category="matmul")
    assert found.status == "fail"


@pytest.mark.parametrize("func", [functional.silu, torch.tanh, functional.gelu])
def test_one_row_by_a_wrong_scale_is_found_where_elements_share_nothing(func: Any) -> None:
    x = drawn(37, 113) * 3
    wrong = func(x.double())
    wrong[16] *= 1 + 2.0**-19
    assert verdict(wrong.float(), func, x, category="elementwise").status == "fail"


# --- labels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES)
def test_a_stale_tile_among_sums_is_no_lower_precision(dtype: torch.dtype) -> None:
    """Old sums of like data are off by a few roundings, as half sums are; but those are off everywhere."""
    x, old = (drawn(331, 200, seed=seed) * 0.25 + 2 for seed in (0, 1))
    x, old = x.to(dtype), old.to(dtype)
    wrong = x.float().mean(0).to(dtype)
    wrong[70:134] = old.float().mean(0).to(dtype)[70:134]
    assert verdict(wrong, torch.mean, x, 0, category="reduction").status == "fail"


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_a_jump_at_one_element_excuses_no_other(dtype: torch.dtype) -> None:
    """Where two inputs are equal the sign of their difference is anybody's guess; nowhere else."""
    a, b = drawn(1500, dtype=dtype), drawn(1500, seed=1, dtype=dtype)
    b[:6] = a[:6]
    grad = torch.ones((), dtype=dtype)
    right = ((a.double() - b.double()).sign() / 1500).to(dtype)
    assert gradient_verdict(right, functional.l1_loss, (a, b), grad).ok
    wrong = right.clone()
    wrong[800:864] = wrong[800:864].roll(1)
    assert not torch.equal(wrong, right)
    assert gradient_verdict(wrong, functional.l1_loss, (a, b), grad).status == "fail"


# --- infinity, NaN, zero -------------------------------------------------------------------------------------


def test_infinity_clamped_to_the_largest_number_is_a_failure() -> None:
    a, b = (drawn(20, 200) * 64).half(), (drawn(200, 20, seed=1) * 64).half()
    right = (a.float() @ b.float()).half()
    assert bool(right.isinf().any()) and verdict(right, torch.mm, a, b, category="matmul").ok
    assert verdict(right.clamp(-65504, 65504), torch.mm, a, b, category="matmul").status == "fail"
    x = torch.full((8, 100), 3e38)
    assert (
        verdict(
            torch.full((8,), torch.finfo(torch.float32).max), torch.sum, x, 1, category="reduction"
        ).status
        == "fail"
    )
    assert verdict(torch.full((8,), torch.inf), torch.sum, x, 1, category="reduction").ok


@pytest.mark.parametrize("func", [functional.softmax, functional.log_softmax, torch.logsumexp])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_a_softmax_that_takes_off_no_maximum_fails_where_that_matters(func: Any, dtype: torch.dtype) -> None:
    x = (drawn(40, 300) + 90).to(dtype)
    powers = x.float().exp()
    total = powers.sum(1, keepdim=True)
    wrong = {
        functional.softmax: powers / total,
        functional.log_softmax: x.float() - total.log(),
        torch.logsumexp: total.log().squeeze(1),
    }[func].to(dtype)
    assert not bool(wrong.isfinite().all())
    assert verdict(wrong, func, x, 1).status == "fail"
    assert verdict(func(x.double(), 1).to(dtype), func, x, 1).ok


@pytest.mark.parametrize("eps", ["missing", "outside the root", "100 times"])
def test_a_wrong_eps_is_found_where_the_variance_is_small(eps: str) -> None:
    x = drawn(48, 256) * 2.0**-8
    variance = x.double().var(1, unbiased=False, keepdim=True)
    scale = {
        "missing": variance.rsqrt(),
        "outside the root": 1 / (variance.sqrt() + 1e-5),
        "100 times": (variance + 1e-3).rsqrt(),
    }[eps]
    wrong = ((x.double() - x.double().mean(1, keepdim=True)) * scale).float()
    assert verdict(wrong, functional.layer_norm, x, (256,)).status == "fail"


@pytest.mark.parametrize("lost", [1, 4])
def test_the_last_terms_of_a_long_sum_are_missed(lost: int) -> None:
    x = drawn(6, 20000)
    assert verdict(x.double().sum(1).float(), torch.sum, x, 1, category="reduction").ok
    wrong = x[:, :-lost].double().sum(1).float()
    assert verdict(wrong, torch.sum, x, 1, category="reduction").status == "fail"


def test_a_variance_that_divides_by_another_count_fails() -> None:
    x = drawn(200, 331)
    wrong = x.double().var(1, unbiased=False).float()
    assert verdict(wrong, torch.var, x, 1, category="reduction").status == "fail"


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (torch.index_select, (0, torch.tensor([2, 0]))),
        (torch.flip, ((0,),)),
        (torch.masked_fill, (torch.tensor([False, True, False]), 1.0)),
    ],
)
def test_a_copy_hands_on_the_sign_of_zero(func: Any, args: tuple[Any, ...]) -> None:
    x = torch.tensor([0.0, 2.0, -0.0])
    right = func(x, *args)
    assert verdict(right.clone(), func, x, *args, category="movement").status == "same"
    assert (
        verdict(right.abs() * right.sign().add(0.5).sign(), func, x, *args, category="movement").status
        == "fail"
    )


@pytest.mark.parametrize("dtype", HALVES)
def test_an_inner_rounding_is_a_label_at_least(dtype: torch.dtype) -> None:
    x, weight, bias = (
        drawn(48, 256, dtype=dtype),
        drawn(256, seed=1, dtype=dtype),
        drawn(256, seed=2, dtype=dtype),
    )
    normal = functional.layer_norm(x.double(), (256,), eps=1e-5).to(dtype)
    wrong = (normal.double() * weight.double() + bias.double()).to(dtype)
    found = verdict(wrong, functional.layer_norm, x, (256,), weight, bias)
    assert found.status in ("lower_precision", "fail")
