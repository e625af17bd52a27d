"""Faults that are smaller than any bound, and right results that look like them: factors, lost terms, labels, order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from op_tools.categories import Category
from op_tools.reference.recompute import Recomputation
from op_tools.verdict import Verdict, judge_all
from op_tools.verdict.tolerance import Tolerance

pytestmark = pytest.mark.unit

TOLERANCE = Tolerance(1e-5, 1e-5)
HALVES = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def verdicts(
    results: list[Any], func: Any, *args: Any, category: Category = "other", **kwargs: Any
) -> list[Verdict]:
    return judge_all(results, Recomputation(func, args, kwargs), category=category, tolerance=TOLERANCE)


def gradient_verdict(
    result: Any, func: Any, args: tuple[Any, ...], grad: Any, index: int, **kwargs: Any
) -> Verdict:
    reference = Recomputation(func, args, kwargs, grad_outputs=[grad], wants_grad=[index])
    return judge_all([result], reference, category="other", tolerance=TOLERANCE)[0]


# --- common factors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1])
def test_a_common_factor_of_float32_is_found_far_inside_the_bounds(sign: int) -> None:
    a, b = torch.randn(48, 700), torch.randn(700, 40)
    right = (a.double() @ b.double()).float()
    [good] = verdicts([right], torch.mm, a, b, category="matmul")
    [bad] = verdicts([(right.double() * (1 + sign * 2.0**-21)).float()], torch.mm, a, b, category="matmul")
    assert good.ok
    assert bad.status == "fail" and "common factor" in bad.reason
    assert bad.error_over_bound < 1, "no element is off by more than its bound"


def test_a_common_factor_of_bfloat16_attention_is_found() -> None:
    q, k, v = (torch.randn(2, 2, 40, 32).bfloat16() for _ in range(3))
    right = functional.scaled_dot_product_attention(*(x.double() for x in (q, k, v)), is_causal=True)
    wrong = (right * (1 + 2.0**-6)).bfloat16()
    attention = functional.scaled_dot_product_attention
    assert verdicts([wrong], attention, q, k, v, category="matmul", is_causal=True)[0].status == "fail"
    assert verdicts([right.bfloat16()], attention, q, k, v, category="matmul", is_causal=True)[0].ok


def test_one_row_of_another_scale_is_found() -> None:
    x = torch.randn(40, 300)
    right = x.double().softmax(1)
    wrong = right.clone()
    wrong[7] *= 1 + 2.0**-19
    [good] = verdicts([right.float()], functional.softmax, x, dim=1)
    [bad] = verdicts([wrong.float()], functional.softmax, x, dim=1)
    assert good.ok
    assert bad.status == "fail" and "row 7" in bad.reason


@pytest.mark.parametrize("func", [torch.exp, torch.sqrt, torch.sigmoid])
def test_elementary_functions_may_be_off_by_two_units_and_not_by_eight(func: Any) -> None:
    x = torch.rand(37, 113) + 0.5
    exact = func(x.double())
    step = torch.finfo(torch.float32).eps * exact.log2().floor().exp2()
    two = (exact + (torch.rand(exact.shape) * 3 - 1.5) * step).float()
    assert verdicts([two], func, x, category="elementwise")[0].ok
    eight = exact.float()
    eight[3, 5] += 8 * step[3, 5].float()
    assert verdicts([eight], func, x, category="elementwise")[0].status == "fail"


def test_one_lane_that_is_off_is_found_inside_the_bounds_of_sums() -> None:
    a, b = torch.randn(48, 300), torch.randn(300, 64)
    right = (a.double() @ b.double()).float()
    wrong = right.clone().view(-1)
    lane = wrong[5::32]
    lane += 8 * torch.finfo(torch.float32).eps * lane.abs().log2().floor().exp2()
    [good] = verdicts([right], torch.mm, a, b, category="matmul")
    [bad] = verdicts([wrong.view_as(right)], torch.mm, a, b, category="matmul")
    assert good.ok
    assert bad.status == "fail"
    assert "elements 5, 37, 69" in bad.reason or "bound" in bad.reason


def test_columns_that_carry_all_errors_are_no_lane() -> None:
    """Every other column is one product, exact in any order; in float64 the reference tells nothing of the others' roundings."""
    for seed in range(8):
        torch.manual_seed(seed)
        a, b = torch.randn(192, 40, dtype=torch.float64), torch.randn(40, 32, dtype=torch.float64)
        b[:, ::2] = torch.eye(40, 16, dtype=torch.float64)
        reordered = torch.zeros(192, 32, dtype=torch.float64)
        for k in reversed(range(40)):
            reordered += a[:, k : k + 1] * b[k]
        [verdict] = verdicts([reordered], torch.mm, a, b, category="matmul")
        assert verdict.ok, (seed, verdict.reason)


def test_what_the_reference_cancels_in_one_tail_excuses_nothing_elsewhere() -> None:
    x = torch.randn(37, 113) * 64
    exact = functional.gelu(x.double())
    assert verdicts([exact.float()], functional.gelu, x, category="elementwise")[0].ok
    wrong = (exact * (1 + 2.0**-20)).float()
    assert verdicts([wrong], functional.gelu, x, category="elementwise")[0].status == "fail"


def test_a_row_that_is_nothing_but_noise_has_no_factor() -> None:
    """The first row of causal attention looks at one key: its gradients are zero but for roundings."""
    q, k, v, grad = (torch.randn(2, 2, 40, 32) for _ in range(4))
    leaf = q.clone().requires_grad_()
    scores = (leaf @ k.transpose(-1, -2)) * 32**-0.5
    scores = scores.masked_fill(~torch.ones(40, 40).tril().bool(), -torch.inf)
    result = torch.autograd.grad((scores.exp() / scores.exp().sum(-1, keepdim=True)) @ v, leaf, grad)[0]
    attention = functional.scaled_dot_product_attention
    reference = Recomputation(attention, (q, k, v), {"is_causal": True}, grad_outputs=[grad], wants_grad=[0])
    [verdict] = judge_all([result], reference, category="matmul", tolerance=TOLERANCE)
    assert verdict.ok, verdict.reason


# --- rows that share one rounded scale ----------------------------------------------------------------------


def test_one_row_that_shares_one_rounded_scale_is_no_truncation() -> None:
    """The weight gradient of an rms_norm on one row leans with the rounding of one number."""
    accused = []
    for seed in range(40):
        draw = torch.Generator().manual_seed(seed)
        x, grad = torch.randn(1, 512, generator=draw), torch.randn(1, 512, generator=draw)
        weight = 1 + 0.1 * torch.randn(512, generator=draw)
        scale = x.double().square().mean().add(1e-5).rsqrt().float() * (1 + 2.0**-24 * (seed % 5 - 2))
        result = grad[0] * (x[0] * scale)
        verdict = gradient_verdict(result, functional.rms_norm, (x, (512,), weight, 1e-5), grad, 1)
        accused += [] if verdict.ok else [(seed, verdict.reason)]
    assert accused == []


def test_rows_that_are_normalised_by_rounded_norms_are_no_truncation() -> None:
    for seed in range(20):
        x = torch.randn(3, 400, generator=torch.Generator().manual_seed(seed))
        norm = x[:, torch.randperm(400)].square().sum(1, keepdim=True).sqrt()
        [verdict] = verdicts([x * (1 / norm)], functional.normalize, x, dim=1)
        assert verdict.ok, (seed, verdict.reason)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_truncated_rows_of_a_softmax_still_fail(dtype: torch.dtype) -> None:
    x = torch.randn(40, 300).to(dtype)
    exact = x.double().softmax(1)
    near = exact.to(dtype)
    bits = near.view(torch.int32 if dtype == torch.float32 else torch.int16)
    cut = torch.where(near.double() > exact, bits - 1, bits).view(dtype)
    [verdict] = verdicts([cut], functional.softmax, x, dim=1)
    assert verdict.status == "fail"


# --- labels need evidence -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("fault", ["lost term", "stale tile", "one lane", "one row"])
def test_faults_of_the_size_of_lower_precision_are_failures(dtype: torch.dtype, fault: str) -> None:
    a, b = torch.randn(24, 3000).to(dtype), torch.randn(3000, 20).to(dtype)
    wrong = (a.float() @ b.float()).to(dtype)
    step = torch.finfo(dtype).eps * wrong.float().abs().clamp(min=1).log2().floor().exp2()
    if fault == "lost term":
        wrong = (a[:, :-1].float() @ b[:-1].float()).to(dtype)
    elif fault == "stale tile":
        wrong.view(-1)[100:120] = (wrong.float() + 6 * step).to(dtype).view(-1)[100:120]
    elif fault == "one lane":
        wrong.view(-1)[5::32] = (wrong.float() + 8 * step).to(dtype).view(-1)[5::32]
    else:
        wrong[3] = (wrong[3].float() * (1 + 16 * torch.finfo(dtype).eps)).to(dtype)
    assert verdicts([wrong], torch.mm, a, b, category="matmul")[0].status == "fail"


def test_biased_variance_and_wrong_eps_are_failures_in_halves() -> None:
    x = (torch.randn(48, 256) * 2.0**-8).bfloat16()
    for constant, count in ((1e-3, 256), (0.0, 256), (1e-5, 128)):
        centred = x.double() - x.double().mean(1, True)
        variance = centred.square().sum(1, True) / count
        wrong = (centred * (variance + constant).rsqrt()).bfloat16()
        [verdict] = verdicts([wrong], functional.layer_norm, x, (256,))
        assert verdict.status == "fail", (constant, count, verdict)


def test_a_wrong_scale_is_not_taken_for_inputs_that_were_cut_off() -> None:
    q, k, v = (torch.randn(2, 3, 24, 64) for _ in range(3))
    exact = functional.scaled_dot_product_attention(*(x.double() for x in (q, k, v)), scale=65**-0.5)
    [verdict] = verdicts([exact.float()], functional.scaled_dot_product_attention, q, k, v, category="matmul")
    assert verdict.status == "fail"


# --- order, ties, zeros -------------------------------------------------------------------------------------


def test_unsorted_topk_may_come_in_any_order_but_not_with_other_values() -> None:
    x = torch.randn(6, 40)
    values, positions = torch.topk(x, 5, sorted=False)
    order = torch.tensor([3, 0, 4, 1, 2])
    moved = [values[:, order].contiguous(), positions[:, order].contiguous()]
    found = verdicts(moved, torch.topk, x, 5, category="index", sorted=False)
    assert [verdict.status for verdict in found] == ["pass", "pass"]
    assert {verdict.status for verdict in verdicts(moved, torch.topk, x, 5, category="index")} == {"fail"}
    mixed = [moved[0], positions]
    assert "fail" in {v.status for v in verdicts(mixed, torch.topk, x, 5, category="index", sorted=False)}
    wrong = moved[0].clone()
    wrong[0, 0] = x[0].min()
    found = verdicts([wrong, moved[1]], torch.topk, x, 5, category="index", sorted=False)
    assert found[0].status == "fail"


def test_copies_keep_the_sign_of_zero_and_selections_need_not() -> None:
    x = torch.tensor([0.0, -1.0, 2.0])
    flipped = torch.tensor([-0.0, -1.0, 2.0])
    [verdict] = verdicts([flipped], torch.clone, x, category="movement")
    assert verdict.status == "fail" and "1 zeros of another sign" in verdict.reason
    assert verdicts([torch.tensor([-0.0, -0.0, 2.0])], torch.relu, x, category="movement")[0].status == "same"


# --- other right formulas -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_silu_by_tanh_is_right_in_its_far_tail(dtype: torch.dtype) -> None:
    x = (torch.randn(37, 113) * 8).to(dtype)
    result = (0.5 * x.float() * (1 + torch.tanh(0.5 * x.float()))).to(dtype)
    assert verdicts([result], functional.silu, x, category="elementwise")[0].status in ("pass", "same")


def test_gelu_by_erfc_and_by_erf_are_right_in_float16() -> None:
    x = (torch.randn(37, 113) * 2).half()
    wide = x.float()
    for result in (0.5 * wide * torch.erfc(-wide * 0.5**0.5), 0.5 * wide * (1 + torch.erf(wide * 0.5**0.5))):
        assert verdicts([result.half()], functional.gelu, x, category="elementwise")[0].status in (
            "pass",
            "same",
        )
