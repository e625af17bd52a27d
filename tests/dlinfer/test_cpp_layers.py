"""cpp's norms, activation, quantisation and experts, beyond what the conformance cases try."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from dlinfer.errors import DlinferArgumentError
from dlinfer.reference import KERNELS

_cpp: Any = pytest.importorskip("dlinfer._cpp")
pytestmark = pytest.mark.unit

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(7)


def _close(got: Tensor, exact: Tensor, roundings: float = 2.0) -> None:
    """Within some roundings of the dtype of `got`, each beside the element itself or beside a typical one."""
    bound = roundings * torch.finfo(got.dtype).eps * (exact.abs() + exact.abs().mean())
    assert bool(((got.double() - exact).abs() <= bound).all())


@pytest.mark.parametrize(("dtype", "weight_dtype"), list(product(FLOATS, FLOATS)))
def test_norms_take_weights_of_any_dtype(dtype: torch.dtype, weight_dtype: torch.dtype) -> None:
    hidden, residual = torch.randn(5, 37, dtype=dtype), torch.randn(5, 37, dtype=dtype)
    weight = torch.randn(37, dtype=weight_dtype)
    got, total = _cpp.add_rms_norm(hidden, residual, weight, 1e-6)
    assert torch.equal(total, hidden + residual) and got.dtype == dtype
    _close(got, KERNELS["rms_norm"](total.double(), weight.double(), 1e-6))
    assert torch.equal(_cpp.rms_norm(total, weight, 1e-6), got)


def test_quantised_norms_are_quantised_norms() -> None:
    hidden, residual, weight = torch.randn(6, 64), torch.randn(6, 64), torch.randn(64)
    norm, total = _cpp.add_rms_norm(hidden, residual, weight, 1e-5)
    numbers, scales, again = _cpp.add_rms_norm_w8a8(hidden, residual, weight, 1e-5, torch.int8)
    expected, expected_scales = _cpp.dynamic_quant(norm, torch.int8)
    assert torch.equal(numbers, expected) and torch.equal(scales, expected_scales)
    assert torch.equal(again, total)


def test_halves_are_rounded_to_even_and_rows_without_numbers_have_scales() -> None:
    row = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0]])
    numbers, scales = _cpp.dynamic_quant(row, torch.int8)
    assert scales.tolist() == [1.0] and numbers.tolist() == [[127, 0, 2, 2, 0, -2, -127]]
    assert _cpp.dynamic_quant(torch.zeros(2, 5), torch.int8)[1].tolist() == [pytest.approx(1e-7 / 127)] * 2
    assert _cpp.dynamic_quant(torch.zeros(2, 0), torch.int8)[1].shape == (2,)
    assert bool(_cpp.dynamic_quant(torch.tensor([[1.0, torch.nan]]), torch.int8)[1].isnan())
    assert (
        _cpp.dynamic_quant(row.view(7, 1), torch.int8, "PER_TENSOR")[0].flatten().tolist()
        == numbers[0].tolist()
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_silu_where_exponentials_end(dtype: torch.dtype) -> None:
    gate = torch.tensor(
        [-200.0, -90.0, -50.0, -3.0, -0.0, 0.0, 1e-4, 3.0, 90.0, torch.inf, torch.nan], dtype=dtype
    )
    got = _cpp.silu_and_mul(torch.cat((gate, torch.full_like(gate, 2))))
    exact = gate.double() / (1 + torch.exp(-gate.double())) * 2
    assert bool(torch.isnan(got[-1])) and got[-2] == torch.inf
    # Below e-35, and below the smallest float16, there may be zeros.
    bound = 4 * torch.finfo(dtype).eps * exact.abs() + max(1e-35, torch.finfo(dtype).smallest_normal * 2**-11)
    assert bool(((got - exact).abs() <= bound)[:-2].all())


def test_silu_of_views_and_of_every_dimension() -> None:
    whole = torch.randn(6, 8, 10)
    for value, dim in ((whole, 0), (whole, 1), (whole, -1), (whole[:, ::2], 1), (whole.transpose(0, 2), 0)):
        gate, up = value.double().chunk(2, dim)
        got = _cpp.silu_and_mul(value, dim)
        _close(got, torch.nn.functional.silu(gate) * up, 4.0)


def test_routing_of_what_is_no_number_gives_distinct_experts() -> None:
    logits = torch.randn(3, 9)
    logits[1, 4] = torch.nan
    weights, ids = _cpp.moe_gating_topk_softmax(logits, 4, -1, True)
    assert all(len(set(row)) == 4 and all(0 <= i < 9 for i in row) for row in ids.tolist())
    exact = torch.softmax(logits, -1).topk(4).values
    for row in (0, 2):
        assert torch.allclose(weights[row], exact[row] / exact[row].sum())


def _experts(dtype: torch.dtype) -> dict[str, Tensor]:
    torch.manual_seed(3)
    return {
        "hidden_states": torch.randn(19, 40, dtype=dtype),
        "gate_up_weights": (torch.randn(6, 48, 40) / 6).to(dtype),
        "down_weights": (torch.randn(6, 40, 24) / 5).to(dtype),
        "topk_weights": torch.rand(19, 3),
        "topk_ids": torch.stack([torch.randperm(6)[:3] for _ in range(19)]),
    }


@pytest.mark.parametrize("dtype", FLOATS[:3])
def test_a_token_gets_the_same_bits_beside_any_other(dtype: torch.dtype) -> None:
    given = _experts(dtype)
    together = _cpp.fused_moe(*given.values())
    for token in (0, 7, 18):
        alone = {
            n: v[token : token + 1] if "weights" not in n or n == "topk_weights" else v
            for n, v in given.items()
        }
        assert torch.equal(_cpp.fused_moe(*alone.values())[0], together[token])


def test_parts_of_the_experts_add_up_and_layouts_do_not_matter() -> None:
    given = _experts(torch.float32)
    whole = _cpp.fused_moe(*given.values())
    parts = []
    for first in (0, 2, 4):
        mine = {
            n: v[first : first + 2] if n in ("gate_up_weights", "down_weights") else v
            for n, v in given.items()
        }
        parts.append(_cpp.fused_moe(*mine.values(), False, first, 6))
    assert torch.allclose(sum(parts, torch.zeros_like(whole)), whole, atol=1e-5)
    given["gate_up_weights"] = given["gate_up_weights"].transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.allclose(_cpp.fused_moe(*given.values()), whole, atol=1e-5)


@pytest.mark.parametrize("dtype", FLOATS[:3])
def test_experts_with_many_tokens(dtype: torch.dtype) -> None:
    """More than the kernels for few rows take, in both layouts, and quantised."""
    tokens = 130
    given = _experts(dtype)
    given["hidden_states"] = torch.randn(tokens, 40, dtype=dtype)
    given["topk_weights"], given["topk_ids"] = torch.rand(tokens, 1), torch.full((tokens, 1), 2)
    doubles = {n: v.double() if v.is_floating_point() else v for n, v in given.items()}
    exact = KERNELS["fused_moe"](**doubles)
    for transposed in (False, True):
        if transposed:
            given["down_weights"] = given["down_weights"].transpose(1, 2).contiguous().transpose(1, 2)
        # Between input and result are two sums, which only float32 shows.
        _close(_cpp.fused_moe(*given.values()), exact, 16.0 if dtype == torch.float32 else 2.0)
    scales = torch.rand(6, 48) / 500, torch.rand(6, 40) / 500
    integers = [torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((6, 48, 40), (6, 40, 24))]
    quantised = (
        given["hidden_states"],
        integers[0],
        scales[0],
        integers[1],
        scales[1],
        *list(given.values())[3:],
    )
    got, wanted = _cpp.fused_moe_w8a8(*quantised), KERNELS["fused_moe_w8a8"](*quantised)
    assert torch.allclose(got.float(), wanted.float(), rtol=0.02, atol=0.02 * float(wanted.abs().max()))


def test_experts_that_do_not_exist_are_refused_by_the_kernel_itself() -> None:
    given = _experts(torch.float32)
    for bad in (-1, 6):
        given["topk_ids"][3, 1] = bad
        with pytest.raises(DlinferArgumentError, match=f"topk_ids.*holds {bad}, expected 0 to 5"):
            _cpp.fused_moe(*given.values())
