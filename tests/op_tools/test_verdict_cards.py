"""Right results as cards compute them are not called wrong: Winograd's tiles, half sums between lanes, an optimizer's steps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from op_tools.categories import category_of
from op_tools.reference.recompute import Recomputation
from op_tools.verdict import Verdict, judge_all
from op_tools.verdict.tolerance import NO_TOLERANCE
from op_tools.verdict.transforms import transform_variance

pytestmark = pytest.mark.unit

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
aten = torch.ops.aten
FOUND = {"fail", "lower_precision"}


@pytest.fixture(scope="module")
def corpus() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import verdict_detection
        import verdict_tiles
    finally:
        sys.path.remove(str(BENCHMARKS))
    return verdict_detection, verdict_tiles


def verdicts(results: list[Any], func: Any, *args: Any) -> list[Verdict]:
    category = category_of(func, str(func))
    return judge_all(results, Recomputation(func, args), category=category, tolerance=NO_TOLERANCE)


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- Winograd ---------------------------------------------------------------------------------------------------


def convolution(seed: int) -> tuple[Any, ...]:
    """The second convolution of a UNet's block."""
    grad = drawn(2, 24, 16, 16, seed=seed) * 1e-3
    x = functional.silu(drawn(2, 24, 16, 16, seed=seed + 1))
    weight = drawn(24, 24, 3, 3, seed=seed + 2) / 15
    return grad, x, weight, [24], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True]


def test_a_kernels_gradient_by_winograds_tiles_is_right(corpus: Any) -> None:
    _, cards = corpus
    for seed in range(3):
        args = convolution(seed * 10)
        own = Recomputation(aten.convolution_backward.default, args).own()
        grad, x = args[:2]
        for turned in (False, True):
            given = (grad.flip(2, 3), x.flip(2, 3)) if turned else (grad, x)
            found = cards._kernel_gradient(*given)
            found = found.flip(2, 3) if turned else found
            result = verdicts([own[0], found, own[2]], aten.convolution_backward.default, *args)[1]
            assert result.ok, (seed, turned, result.reason)


@pytest.mark.parametrize("fault", ["lost product", "lost tile", "one element", "other scale"])
def test_a_fault_in_a_kernels_gradient_is_found_whether_by_tiles_or_plain(corpus: Any, fault: str) -> None:
    _, cards = corpus
    args = convolution(70)
    grad, x = args[:2]
    own = Recomputation(aten.convolution_backward.default, args).own()
    for right in (own[1], cards._kernel_gradient(grad, x)):
        wrong = right.clone()
        if fault == "lost product":
            wrong -= torch.einsum("k,c->kc", grad[1, :, 7, 7], x[1, :, 7, 7]).view(24, 24, 1, 1) * (
                torch.arange(9).view(3, 3) == 4
            )
        elif fault == "lost tile":
            wrong -= cards._kernel_gradient(grad * (torch.arange(16) >= 12), x * (torch.arange(16) >= 11))
        elif fault == "one element":
            wrong.view(-1)[int(wrong.abs().argmax())] *= 1 + 2**-12
        else:
            wrong *= 1 + 2**-17
        result = verdicts([own[0], wrong, own[2]], aten.convolution_backward.default, *args)[1]
        assert result.status == "fail", (fault, result)


def test_the_transforms_add_nothing_where_no_library_transforms() -> None:
    x, weight = drawn(1, 4, 9, 9, seed=1), drawn(6, 4, 3, 3, seed=2)
    assert transform_variance(Recomputation(functional.conv2d, (x, weight), {"padding": 1})) is not None
    for options in ({"stride": 2}, {"dilation": 2}, {"padding": (1, 0)}):
        assert transform_variance(Recomputation(functional.conv2d, (x, weight), options)) is None
    for other in (drawn(6, 4, 1, 1, seed=3), drawn(6, 4, 3, 1, seed=3), drawn(6, 4, 7, 7, seed=3)):
        assert transform_variance(Recomputation(functional.conv2d, (x, other))) is None
    assert transform_variance(Recomputation(torch.mm, (x[0, 0], x[0, 0]))) is None


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("length", [3, 5])
def test_variances_of_the_transforms_have_the_shapes_of_results_and_exceed_plain_sums(
    length: int, groups: int
) -> None:
    x, weight = drawn(2, 4, 11, 13, seed=1), drawn(6, 4 // groups, length, length, seed=2)
    call = Recomputation(functional.conv2d, (x, weight, None, 1, 2, 1, groups))
    [variance] = transform_variance(call) or [None]
    plain = functional.conv2d(x.double().square(), weight.double().square(), None, 1, 2, 1, groups)
    assert variance is not None and variance.shape == plain.shape and bool((variance > plain).all())
    grads = Recomputation(
        functional.conv2d, (x, weight, None, 1, 2, 1, groups), grad_outputs=[plain.float()], wants_grad=[1, 0]
    )
    to_weight, to_input = transform_variance(grads) or (None, None)
    assert to_weight.shape == weight.shape and to_input.shape == x.shape


# --- sums in halves between lanes -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_batch_norms_gradients_with_half_sums_between_lanes_are_labelled_and_faults_are_not(
    corpus: Any, dtype: torch.dtype
) -> None:
    detection, _ = corpus
    by_name = {subject.name: subject for subject in detection.SUBJECTS}
    for seed in range(2):
        case = detection.Case(by_name["mixed native_batch_norm_backward"], "normal", dtype, seed)
        for _, results in detection.practice_results(case):
            statuses = [case.judged(results, index).status for index in range(3)]
            assert "fail" not in statuses and "lower_precision" in statuses
        good = case.by(detection.RIGHT["blocks of 64"])
        wrong = good[0] * (1 + 2**-6)
        assert case.judged([wrong, *good[1:]], 0).status == "fail"
        lost = case.by(detection.How(64, fault="dropped last block", dtype=dtype))
        assert {case.judged(lost, index).status for index in range(3)} <= FOUND


def test_roundings_inside_show_what_moved_inputs_average_out() -> None:
    """Where the gradient is masked two sums of a channel are left, and may cancel: they are rounded as a whole."""
    draw = torch.Generator().manual_seed(2)
    x, weight = drawn(64, 3, 8, 8, seed=3), torch.ones(3)
    grad = (2 + x) * (torch.rand(64, 3, 8, 8, generator=draw) < 0.5)
    _, mean, inverse = torch.native_batch_norm(x, weight, None, None, None, True, 0.1, 1e-5)
    args = (grad, x, weight, None, None, mean, inverse, True, 1e-5, [True, True, True])
    reference = Recomputation(aten.native_batch_norm_backward.default, args)
    truth = reference.truth()
    assert truth is not None

    cancelling = (grad == 0) & (truth[0].abs() < 0.05)

    def where_they_cancel(moved: Any) -> float:
        changes = [(moved(seed)[0] - truth[0])[cancelling] for seed in range(1, 9)]
        return float(torch.stack(changes).square().mean().sqrt())

    one_rounding = float(grad.mean()) * 2**-24
    by_inputs, by_sums = (where_they_cancel(moved) for moved in (reference.perturbed, reference.moved_inside))
    assert by_sums**2 - by_inputs**2 > one_rounding**2
    assert torch.equal(reference.moved_inside(5)[0], reference.moved_inside(5)[0])


# --- fused steps of an optimizer --------------------------------------------------------------------------------


def test_a_step_that_takes_parameters_across_zero_is_right_by_any_division() -> None:
    """Eight reruns may move one of ten thousand elements by next to nothing; each argument by itself moves it as it does."""
    step, size = -0.0052631578947, (160, 64)
    for seed in (0, 1, 2, 4, 5):
        draw = torch.Generator().manual_seed(seed)
        average = torch.randn(size, generator=draw) * 1e-3
        root = torch.randn(size, generator=draw).square() * 1e-3 + 1e-4
        p = torch.randn(size, generator=draw) * 3e-4
        p = p - average / root * step * (torch.rand(size, generator=draw) < 0.3)
        # A quotient to 2 units in the last place, a product, a sum.
        errors = torch.rand(size, generator=draw).double() * 2 - 1
        quotient = (average.double() / root.double() * (1 + errors * 2**-23)).float()
        result = quotient * torch.tensor(step) + p
        [found] = verdicts([result], torch._foreach_addcdiv, [p], [average], [root], [step])
        assert found.ok, (seed, found.reason)
        wrong = result.clone()
        wrong.view(-1)[int(wrong.abs().argmax())] *= 1 + 2**-17
        [found] = verdicts([wrong], torch._foreach_addcdiv, [p], [average], [root], [step])
        assert found.status == "fail", seed


# --- rows that share one rounded scale --------------------------------------------------------------------------


def test_rows_that_share_one_rounded_scale_do_not_lean() -> None:
    """One row of rms_norm, and F.normalize: by a rounded scale all elements may lie on the inner side, and none is cut off."""
    for seed in range(40):
        x, weight = drawn(1, 512, seed=seed), 1 + 0.1 * drawn(512, seed=seed + 100)
        scale = (x.double().square().mean(1, keepdim=True) + 1e-5).rsqrt().float()
        for rounded in (scale, torch.nextafter(scale, torch.zeros(()))):
            [found] = verdicts([x * rounded * weight], functional.rms_norm, x, (512,), weight, 1e-5)
            assert found.ok, (seed, found.reason)
        rows = drawn(24, 300, seed=seed + 200)
        length = rows.view(24, 3, 100).square().sum(2).sum(1, keepdim=True).sqrt()  # another order
        for normal in (rows / length, rows * (1 / length)):
            [found] = verdicts([normal], functional.normalize, rows, 2.0, 1)
            assert found.ok, (seed, found.reason)


def test_rows_that_are_cut_off_lean() -> None:
    rows = drawn(24, 300, seed=1)
    exact = functional.normalize(rows.double(), dim=1)
    rounded = exact.float()
    beyond = rounded.double().abs() > exact.abs()
    cut = torch.where(beyond, rounded.view(torch.int32) - 1, rounded.view(torch.int32)).view(torch.float32)
    [found] = verdicts([cut], functional.normalize, rows, 2.0, 1)
    assert found.status == "fail" and "lean towards zero" in found.reason
