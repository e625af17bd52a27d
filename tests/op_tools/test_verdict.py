"""The verdict: right results pass whatever their order of sums, wrong ones fail, lower precision is named."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from op_tools.categories import Category
from op_tools.reference.recompute import Recomputation
from op_tools.verdict import NoiseCache, Verdict, judge, judge_all
from op_tools.verdict.tolerance import Tolerance, tolerance_for

pytestmark = pytest.mark.unit

TOLERANCE = Tolerance(1e-5, 1e-5)
HALVES = (torch.bfloat16, torch.float16)
FLOATS = (torch.float32, *HALVES)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def verdict_of(
    result: Any,
    func: Any,
    *args: Any,
    category: Category = "other",
    kwargs: dict[str, Any] | None = None,
    **more: Any,
) -> Verdict:
    reference = Recomputation(func, args, kwargs, **more)
    return judge_all([result], reference, category=category, tolerance=TOLERANCE)[0]


def matrices(dtype: torch.dtype, inner: int = 500) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(40, inner).to(dtype), torch.randn(inner, 24).to(dtype)


def reordered(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    order = torch.randperm(a.shape[1])
    return (a.float()[:, order] @ b.float()[order]).to(a.dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_bit_equal_result_is_the_same_and_asks_for_nothing_more(dtype: torch.dtype) -> None:
    a, b = matrices(dtype)
    reference = Recomputation(torch.mm, (a, b))
    reference.truth = reference.perturbed = None  # type: ignore[assignment, method-assign]
    verdict = judge_all([a @ b], reference, category="matmul", tolerance=TOLERANCE)[0]
    assert (verdict.status, verdict.allclose, verdict.max_abs_diff, verdict.cosine_similarity) == (
        "same",
        True,
        0.0,
        1.0,
    )
    assert verdict.ok and verdict.reruns == 0


@pytest.mark.parametrize("dtype", FLOATS)
def test_another_order_of_sums_passes(dtype: torch.dtype) -> None:
    a, b = matrices(dtype)
    verdict = verdict_of(reordered(a, b), torch.mm, a, b, category="matmul")
    assert verdict.status in ("pass", "same")
    assert not verdict.raw_alarm
    assert verdict.reruns <= 2


def test_a_long_chain_of_additions_passes() -> None:
    a, b = torch.randn(16, 4096), torch.randn(4096, 16)
    total = torch.zeros(16, 16)
    for k in range(4096):
        total = total + a[:, k : k + 1] * b[k]
    assert verdict_of(total, torch.mm, a, b, category="matmul").status == "pass"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("fault", ["one element", "last block", "rows", "zeros", "nan"])
def test_wrong_products_fail(dtype: torch.dtype, fault: str) -> None:
    a, b = matrices(dtype)
    wrong = reordered(a, b)
    if fault == "one element":
        index = int(wrong.abs().argmax())
        wrong.view(-1)[index] *= 1.03
    elif fault == "last block":
        wrong = (a[:, :480].float() @ b[:480].float()).to(dtype)
    elif fault == "rows":
        wrong = wrong[torch.tensor([1, 0, *range(2, 40)])]
    elif fault == "zeros":
        wrong.zero_()
    else:
        wrong[3, 4] = math.nan
    verdict = verdict_of(wrong, torch.mm, a, b, category="matmul")
    assert verdict.status == "fail" and not verdict.ok and verdict.raw_alarm
    assert verdict.reason


def test_a_failure_says_by_how_many_bounds_and_which_element() -> None:
    a, b = matrices(torch.float32)
    result = a @ b
    result[2, 7] *= 1.01
    verdict = verdict_of(result, torch.mm, a, b, category="matmul")
    assert verdict.reason.startswith(
        f"1 element is off, up to {verdict.error_over_bound:.3g} times the bound: element {2 * 24 + 7} is "
    )


def test_a_zero_gradient_of_small_size_fails_though_it_is_close() -> None:
    x = torch.randn(64, 32).bfloat16()
    grads = [torch.randn(64, 32).bfloat16() * 1e-5]
    reference = Recomputation(functional.gelu, (x,), grad_outputs=grads, wants_grad=[0])
    tolerance = Tolerance(1e-3, 1e-3)
    verdict = judge(torch.zeros_like(x), reference, 0, category="elementwise", tolerance=tolerance)
    assert (verdict.status, verdict.allclose) == ("fail", True)
    assert (
        judge(reference.own()[0].clone(), reference, 0, category="elementwise", tolerance=tolerance).status
        == "same"
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_truncation_fails(dtype: torch.dtype) -> None:
    x = torch.randn(4000).to(dtype)
    exact = x.double().sigmoid()
    rounded = exact.to(dtype)
    bits = rounded.view(torch.int32 if dtype == torch.float32 else torch.int16)
    truncated = torch.where(rounded.double() > exact, bits - 1, bits).view(dtype)
    assert bool((truncated.double() <= exact).all())
    assert verdict_of(truncated, torch.sigmoid, x, category="elementwise").status == "fail"
    assert verdict_of(rounded, torch.sigmoid, x, category="elementwise").ok


def tf32(x: torch.Tensor) -> torch.Tensor:
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_tf32_is_named(shift: float) -> None:
    a, b = matrices(torch.float32)
    a, b = a + shift, b + shift
    verdict = verdict_of(tf32(a) @ tf32(b), torch.mm, a, b, category="matmul")
    assert verdict.status == "lower_precision"
    assert verdict.reason == "lower precision than its dtype: behaves like TF32"
    assert verdict.ok


def batch_norm_gradients(sums: torch.dtype, lost: int = 0) -> list[Verdict]:
    """Gradients of the weight and the bias of a batch norm of bfloat16, with sums in some type or with lost rows."""
    x, grad = torch.randn(4, 16, 6, 6).bfloat16(), torch.randn(4, 16, 6, 6).bfloat16() * 1e-2
    weight, mean, inverse = torch.rand(16) + 0.5, x.float().mean((0, 2, 3)), x.float().var((0, 2, 3)).rsqrt()
    normal = (x.float() - mean.view(1, -1, 1, 1)) * inverse.view(1, -1, 1, 1)
    results: list[Any] = []
    for terms in (grad.float() * normal, grad.float()):
        total = torch.zeros(16, dtype=sums)
        for row in terms.transpose(0, 1).flatten(1).T[lost:]:
            total = total + row.to(sums)
        results.append(total.float())
    args = (grad, x, weight, mean, mean, mean, inverse, True, 1e-5, [True, True, True])
    reference = Recomputation(torch.ops.aten.native_batch_norm_backward.default, args)
    return [judge(results[i], reference, i + 1, category="other", tolerance=TOLERANCE) for i in range(2)]


def test_sums_of_halves_that_come_back_in_float32_are_named_lower_precision() -> None:
    for verdict in batch_norm_gradients(torch.bfloat16):
        assert verdict.status == "lower_precision"
        assert "accumulation in bfloat16" in verdict.reason
    assert {verdict.status for verdict in batch_norm_gradients(torch.float32)} <= {"pass", "same"}
    assert [verdict.status for verdict in batch_norm_gradients(torch.float32, lost=40)] == ["fail", "fail"]


@pytest.mark.parametrize("dtype", HALVES)
def test_half_accumulation_is_named(dtype: torch.dtype) -> None:
    a, b = matrices(dtype)
    total = torch.zeros(40, 24, dtype=dtype)
    for k in range(0, 500, 20):
        total = (total.float() + a[:, k : k + 20].float() @ b[k : k + 20].float()).to(dtype)
    verdict = verdict_of(total, torch.mm, a, b, category="matmul")
    assert verdict.status == "lower_precision"
    assert verdict.reason.endswith(f"behaves like accumulation in {str(dtype).removeprefix('torch.')}")


@pytest.mark.parametrize("dtype", HALVES)
def test_a_running_sum_in_half_is_named(dtype: torch.dtype) -> None:
    x = torch.randn(16, 600).to(dtype)
    columns = [x[:, 0]]
    for column in x.unbind(1)[1:]:
        columns.append(columns[-1] + column)
    verdict = verdict_of(torch.stack(columns, 1), torch.cumsum, x, 1, category="reduction")
    assert verdict.status == "lower_precision"


def test_single_precision_that_was_computed_in_half_is_named() -> None:
    x = torch.randn(500)
    verdict = verdict_of(torch.tanh(x).bfloat16().float(), torch.tanh, x, category="elementwise")
    assert verdict.reason == "lower precision than its dtype: values carry only bfloat16"


def test_data_movement_is_bit_exact() -> None:
    x = torch.randn(30, 30)
    moved = x[:, torch.arange(29, -1, -1)]
    assert verdict_of(moved, torch.flip, x, (1,), category="movement").status == "same"
    moved = moved.clone()
    moved[2, 3] = torch.nextafter(moved[2, 3], torch.tensor(9.0))
    verdict = verdict_of(moved, torch.flip, x, (1,), category="movement")
    assert verdict.status == "fail" and "1 of 900 elements differ" in verdict.reason
    assert verdict.allclose, (
        "one unit in the last place is far below the tolerance, and still wrong for a copy"
    )


def test_integers_and_booleans_are_bit_exact() -> None:
    x = torch.arange(12).reshape(3, 4)
    assert verdict_of(x.sum(1), torch.sum, x, 1, category="reduction").status == "same"
    assert verdict_of(x.sum(1) + 1, torch.sum, x, 1, category="reduction").status == "fail"
    assert verdict_of((x > 3) ^ True, torch.gt, x, 3, category="movement").status == "fail"
    unsigned = torch.tensor([0], dtype=torch.uint8)
    verdict = verdict_of(unsigned + 1, torch.clone, unsigned, category="movement")
    assert verdict.max_abs_diff == 1.0, "unsigned differences do not wrap around"


def test_positions_may_differ_where_values_tie() -> None:
    x = torch.tensor([[3.0, 1.0, 3.0, 2.0]])
    assert verdict_of(torch.tensor([2]), torch.argmax, x, 1, category="index").status == "pass"
    assert verdict_of(torch.tensor([3]), torch.argmax, x, 1, category="index").status == "fail"
    reference = Recomputation(torch.sort, (x, 1))
    values, indices = torch.sort(x, 1)
    swapped = indices.clone()
    swapped[0, 2], swapped[0, 3] = indices[0, 3], indices[0, 2]
    both = judge_all([values, swapped], reference, category="index", tolerance=TOLERANCE)
    assert [verdict.status for verdict in both] == ["same", "pass"]
    twice = indices.clone()
    twice[0, 2] = twice[0, 3]
    assert judge_all([values, twice], reference, category="index", tolerance=TOLERANCE)[1].status == "fail"


def test_a_stable_sort_keeps_the_order_of_ties() -> None:
    x = torch.tensor([2.0, 2.0, 1.0])
    reference = Recomputation(torch.sort, (x,), {"stable": True})
    wrong = [torch.tensor([1.0, 2.0, 2.0]), torch.tensor([2, 1, 0])]
    assert judge_all(wrong, reference, category="index", tolerance=TOLERANCE)[1].status == "fail"


def test_positions_of_pooling_may_tie() -> None:
    x = torch.zeros(1, 1, 2, 2)
    reference = Recomputation(torch.ops.aten.max_pool2d_with_indices.default, (x, [2, 2]))
    results = [torch.zeros(1, 1, 1, 1), torch.full((1, 1, 1, 1), 3)]
    assert [v.status for v in judge_all(results, reference, category="index", tolerance=TOLERANCE)] == [
        "same",
        "pass",
    ]


def test_nan_and_infinity_must_be_where_they_belong() -> None:
    x = torch.tensor([1.0, -1.0, 0.0, 4.0])
    right = x.log()
    assert verdict_of(right.clone(), torch.log, x, category="elementwise").status == "same"
    for index in range(4):
        wrong = right.clone()
        wrong[index] = 0.5
        assert verdict_of(wrong, torch.log, x, category="elementwise").status == "fail"


def test_overflow_at_the_end_of_the_format() -> None:
    x = torch.tensor([65504.0, 60000.0, 1.0], dtype=torch.float16)
    assert verdict_of(x * 2, torch.mul, x, 2.0, category="elementwise").status == "same"
    saturated = torch.tensor([65504.0, 65504.0, 2.0], dtype=torch.float16)
    assert verdict_of(saturated, torch.mul, x, 2.0, category="elementwise").status == "fail"
    # 65520 is half way between the largest number and infinity: either neighbour is a rounding.
    edge = torch.tensor([65504.0], dtype=torch.float16)
    for got in (65504.0, math.inf):
        result = torch.tensor([got], dtype=torch.float16)
        assert verdict_of(result, torch.add, edge, 16.0, category="elementwise").ok


def test_small_numbers_may_be_flushed_in_wide_formats_only() -> None:
    x = torch.full((100,), 1e-39)
    assert verdict_of(torch.zeros(100), torch.mul, x, 0.5, category="elementwise").ok
    half = torch.full((100,), 2e-5, dtype=torch.float16)
    assert (
        verdict_of(torch.zeros(100, dtype=torch.float16), torch.mul, half, 0.5, category="elementwise").status
        == "fail"
    )


def test_complex_results() -> None:
    a, b = torch.randn(200, dtype=torch.complex64), torch.randn(200, dtype=torch.complex64)
    result = (a.to(torch.complex128) * b.to(torch.complex128)).to(torch.complex64)
    assert verdict_of(result, torch.mul, a, b, category="elementwise").ok
    assert verdict_of(result.conj().resolve_conj(), torch.mul, a, b, category="elementwise").status == "fail"


def test_double_precision_is_held_to_double_precision() -> None:
    a, b = torch.randn(30, 300).double(), torch.randn(300, 30).double()
    order = torch.randperm(300)
    assert verdict_of(a[:, order] @ b[order], torch.mm, a, b, category="matmul").ok
    single = (a.float() @ b.float()).double()
    assert verdict_of(single, torch.mm, a, b, category="matmul").status == "fail"


def test_empty_and_single_results() -> None:
    empty = torch.zeros(0, 4)
    assert verdict_of(empty, torch.exp, empty, category="elementwise").status == "same"
    x = torch.rand(1000)
    assert verdict_of(x.double().sum().float(), torch.sum, x, category="reduction").ok
    assert verdict_of(x[:-1].sum(), torch.sum, x, category="reduction").status == "fail"


def test_float8_results() -> None:
    x = torch.randn(64)
    right = x.to(torch.float8_e4m3fn)
    assert verdict_of(right, torch.Tensor.to, x, torch.float8_e4m3fn, category="movement").status == "same"
    wrong = (x * 1.3).to(torch.float8_e4m3fn)
    assert verdict_of(wrong, torch.Tensor.to, x, torch.float8_e4m3fn, category="movement").status == "fail"


def test_sparse_results_are_compared_dense() -> None:
    x = torch.eye(4).to_sparse()
    assert verdict_of(torch.mul(x, 3.0), torch.mul, x, 3.0, category="elementwise").status == "same"
    assert verdict_of(torch.mul(x, 3.1), torch.mul, x, 3.0, category="elementwise").status == "fail"


def test_numbers_and_lists() -> None:
    x = torch.tensor([1.5, math.nan])
    reference = Recomputation(torch.Tensor.tolist, (x,))
    statuses = [
        v.status for v in judge_all([1.5, math.nan], reference, category="movement", tolerance=TOLERANCE)
    ]
    assert statuses == ["same", "same"]
    wrong = judge_all([1.5000001, 2.0], reference, category="movement", tolerance=TOLERANCE)
    assert [v.status for v in wrong] == ["fail", "fail"]


def test_what_has_no_values_is_skipped_with_a_reason() -> None:
    meta = torch.empty(3, device="meta")
    verdict = verdict_of(meta, torch.clone, torch.zeros(3), category="movement")
    assert verdict.status == "skipped" and "meta" in verdict.reason
    verdict = verdict_of(torch.ones(3), torch.empty_like, torch.zeros(3), category="uninitialised")
    assert verdict.status == "skipped" and verdict.ok


def test_other_shapes_dtypes_and_counts_fail() -> None:
    x = torch.ones(3)
    verdict = verdict_of(torch.ones(1, 3), torch.clone, x, category="movement")
    assert verdict.error_info == "Inconsistent shapes: (1, 3) (3,)"
    verdict = verdict_of(torch.ones(3).double(), torch.clone, x, category="movement")
    assert (
        verdict.error_info == "Inconsistent dtypes: torch.float64 torch.float32" and verdict.status == "fail"
    )
    verdicts = judge_all([x, x], Recomputation(torch.clone, (x,)), category="movement", tolerance=TOLERANCE)
    assert [v.status for v in verdicts] == ["fail", "fail"]


def test_the_noise_cache_saves_reruns_and_never_lets_a_fault_pass() -> None:
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        # Known by no name, and without errors of its own to excuse others: its noise has to be measured.
        return (a.double() @ b.double()).to(a.dtype)

    cache = NoiseCache()
    a, b = matrices(torch.float32)
    first = judge_all(
        [reordered(a, b)],
        Recomputation(product, (a, b)),
        category="matmul",
        tolerance=TOLERANCE,
        noise=cache,
        key="mm",
    )[0]
    assert first.reruns == 2 and len(cache) == 1
    c, d = matrices(torch.float32)
    reference = Recomputation(product, (c, d))
    second = judge_all(
        [reordered(c, d)], reference, category="matmul", tolerance=TOLERANCE, noise=cache, key="mm"
    )[0]
    assert (second.status, second.reruns) == ("pass", 0)
    wrong = reordered(c, d)
    wrong[0, 0] += 0.01
    third = judge_all([wrong], reference, category="matmul", tolerance=TOLERANCE, noise=cache, key="mm")[0]
    assert third.status == "fail" and third.reruns == 8


def test_columns_are_those_of_the_reference_in_its_own_dtype() -> None:
    x = torch.tensor([1.0, 2.0, 4.0])
    verdict = verdict_of(torch.tensor([1.0, 2.5, 4.0]), torch.clone, x, category="other")
    assert (verdict.allclose, verdict.max_abs_diff, verdict.max_relative_diff) == (False, 0.5, 0.25)
    assert verdict.cosine_similarity == pytest.approx(22 / math.sqrt(21 * 23.25), abs=1e-6)
    assert (verdict.atol, verdict.rtol) == (1e-5, 1e-5)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**20),
    rows=st.integers(1, 12),
    inner=st.integers(1, 300),
    dtype=st.sampled_from(FLOATS),
    scale=st.sampled_from([1e-3, 1.0, 50.0]),
)
def test_any_order_of_any_sum_passes_and_a_missing_row_does_not(
    seed: int, rows: int, inner: int, dtype: torch.dtype, scale: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(inner, rows, generator=generator) * scale).to(dtype)
    order = torch.randperm(inner, generator=generator)
    right = x.float()[order].cumsum(0)[-1].to(dtype)
    assert verdict_of(right, torch.sum, x, 0, category="reduction").status in ("same", "pass")
    assert (
        verdict_of(torch.full_like(right, math.nan), torch.sum, x, 0, category="reduction").status == "fail"
    )
    stale = (right.float() * 2 + scale).to(dtype)
    assert verdict_of(stale, torch.sum, x, 0, category="reduction").status == "fail"


def test_tolerances_come_from_the_strongest_variable() -> None:
    linear = "torch.nn.functional.linear"
    assert tolerance_for(linear, torch.float16, {}) == Tolerance(1e-4, 1e-4)
    assert tolerance_for(linear, torch.bfloat16, {}) == Tolerance(1e-3, 1e-3)
    assert tolerance_for(linear, torch.float32, {}) == Tolerance(1e-5, 1e-5)
    assert tolerance_for(linear, torch.float64, {}) == Tolerance(1e-8, 1e-8)
    assert tolerance_for(linear, torch.int64, {}) == Tolerance(1e-3, 1e-3)
    assert tolerance_for(linear, float, {}) == Tolerance(1e-6, 1e-6)
    assert tolerance_for(linear, None, {}) == Tolerance(0.0, 0.0)
    environ = {"AUTOCOMPARE_ERROR_TOLERANCE": "1e-4, 1e-5"}
    assert tolerance_for(linear, torch.float32, environ) == Tolerance(1e-4, 1e-5)
    environ["AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16"] = "1e-3,1e-4"
    assert tolerance_for(linear, torch.float16, environ) == Tolerance(1e-3, 1e-4)
    environ["LINEAR_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16"] = "0.5,0.25"
    assert tolerance_for(linear, torch.float16, environ) == Tolerance(0.5, 0.25)
    assert tolerance_for("torch.add", torch.float16, environ) == Tolerance(1e-3, 1e-4)


@pytest.mark.parametrize("value", ["1e-3", "1e-3,x", "1,2,3", "-1,1", "nan,1"])
def test_a_malformed_tolerance_is_a_clear_error(value: str) -> None:
    with pytest.raises(ValueError, match=r"AUTOCOMPARE_ERROR_TOLERANCE.*atol,rtol") as caught:
        tolerance_for("torch.add", torch.float32, {"AUTOCOMPARE_ERROR_TOLERANCE": value})
    assert repr(value) in str(caught.value)


def test_a_product_with_a_rounded_reciprocal_is_a_quotient_and_truncation_is_not() -> None:
    x = torch.rand(4096, generator=torch.Generator().manual_seed(3)) + 0.5
    for scalar in (0.0316, 0.7, 3.1, 9.99):
        product = x * torch.tensor(1.0 / torch.tensor(scalar).item())
        exact = x.double() / torch.tensor(scalar).double()
        nearest = exact.float()
        truncated = torch.where(nearest.double() > exact, torch.nextafter(nearest, torch.zeros(())), nearest)
        quotient = Recomputation(torch.div, (x, torch.tensor(scalar).item()))
        good, bad = (
            judge_all([value], quotient, category="elementwise", tolerance=TOLERANCE)[0]
            for value in (product, truncated)
        )
        assert good.ok, (scalar, good.reason)
        assert bad.status == "fail" and "truncation" in bad.reason, (scalar, bad)
