"""The kernels of the vendor triton: on a GPU, or (TRITON_INTERPRET=1) interpreted on the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from dlinfer.interface.registry import OVERLOADS
from dlinfer.reference import KERNELS as REFERENCE
from dlinfer.vendors import using

pytestmark = pytest.mark.unit
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture
def device() -> Iterator[str]:
    """Where the kernels run; the vendor is chosen meanwhile."""
    if find_spec("triton") is None:
        pytest.skip("triton is not installed")
    if INTERPRETED:
        from dicp.vendor.TritonGraph.interpreter import repair_interpreter

        repair_interpreter()
    elif not torch.cuda.is_available():
        pytest.skip("there is no GPU; TRITON_INTERPRET=1 runs the kernels on the CPU")
    with using("triton"):
        yield "cpu" if INTERPRETED else "cuda"


def _paged(
    device: str, lengths: list[int], block: int = 8, kv_heads: int = 2, size: int = 32
) -> dict[str, Any]:
    """Caches, and a table whose blocks lie anywhere."""
    generator = torch.Generator().manual_seed(0)
    columns = -(-max(lengths) // block)
    blocks = len(lengths) * columns + 3
    order = torch.randperm(blocks, generator=generator)[: len(lengths) * columns]
    caches = torch.randn(2, blocks, block, kv_heads, size, generator=generator)
    return {
        "key_cache": caches[0].to(device),
        "value_cache": caches[1].to(device),
        "block_table": order.view(len(lengths), columns).to(device, torch.int32),
        "kv_lengths": torch.tensor(lengths, dtype=torch.int32, device=device),
    }


def _decode(pages: dict[str, Any], query: Tensor, **extras: Any) -> Tensor:
    out = torch.full_like(query, 7)
    OVERLOADS["paged_decode_attention"](query, *pages.values(), 0, out, query.shape[-1] ** -0.5, **extras)
    return out


def _expected(pages: dict[str, Any], query: Tensor, **extras: Any) -> Tensor:
    out = torch.empty_like(query)
    REFERENCE["paged_decode_attention"](query, *pages.values(), 0, out, query.shape[-1] ** -0.5, **extras)
    return out


def _query(device: str, tokens: int, heads: int = 4, size: int = 32) -> Tensor:
    return torch.randn(tokens, heads, size, generator=torch.Generator().manual_seed(1)).to(device)


@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("window", [-1, 20])
def test_keys_that_are_split_give_what_they_give_together(
    device: str, monkeypatch: pytest.MonkeyPatch, new: int, window: int
) -> None:
    from dlinfer.vendors.triton import tables

    monkeypatch.setattr(tables, "LEAST_KEYS", 16)
    monkeypatch.setattr(tables, "PROGRAMS", 64)
    assert tables.splits(8, 152, 256, 8) > 4
    pages = _paged(device, [150, 3, 0, 77])
    query = _query(device, 4 * new)
    got = _decode(pages, query, window_left=window)
    torch.testing.assert_close(got, _expected(pages, query, window_left=window), rtol=2e-5, atol=2e-5)


def test_more_splits_than_one_step_sums(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from dlinfer.vendors.triton import tables

    monkeypatch.setattr(tables, "splits", lambda *_: 37)
    pages, query = _paged(device, [1200]), _query(device, 1)
    torch.testing.assert_close(_decode(pages, query), _expected(pages, query), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("block", [-5, 10**6])
def test_a_block_that_does_not_exist_gives_nan_to_its_sequence_alone(device: str, block: int) -> None:
    pages, query = _paged(device, [30, 20]), _query(device, 2)
    expected = _expected(pages, query)
    pages["block_table"][0, 1] = block
    got = _decode_unchecked(pages, query)
    assert got[0].isnan().all()
    torch.testing.assert_close(got[1], expected[1], rtol=2e-5, atol=2e-5)


def _decode_unchecked(pages: dict[str, Any], query: Tensor) -> Tensor:
    """The kernel itself: on the CPU the interface would refuse."""
    from dlinfer.vendors.triton.launching import kernel as KERNELS

    out = torch.full_like(query, 7)
    KERNELS["paged_decode_attention"](query, *pages.values(), 0, out, query.shape[-1] ** -0.5)
    return out


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("length", [-3, 10**6])
def test_a_length_that_the_table_does_not_hold_gives_nan(
    device: str, monkeypatch: pytest.MonkeyPatch, length: int, splits: int
) -> None:
    from dlinfer.vendors.triton import tables

    monkeypatch.setattr(tables, "splits", lambda *_: splits)
    pages, query = _paged(device, [30, 20]), _query(device, 2)
    expected = _expected(pages, query)
    pages["kv_lengths"][1] = length
    got = _decode_unchecked(pages, query)
    assert got[1].isnan().all()
    torch.testing.assert_close(got[0], expected[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "ends", [[5, 900], [-4, 9], [9, 3], [500, 2, 9], [-90, 800, 4], [2**40, -(2**40), 9]]
)
def test_ends_that_make_no_sense_stay_inside_of_the_output(device: str, ends: list[int]) -> None:
    from dlinfer.vendors.triton.launching import kernel as KERNELS

    pages, query = _paged(device, [30, 20, 8][: len(ends)]), _query(device, 9)
    whole = torch.full((15, *query.shape[1:]), 7.0, device=device)
    arguments = (*pages.values(),)
    KERNELS["paged_prefill_attention"](
        query, *arguments[:3], torch.tensor([0, *ends], device=device), arguments[3], 0, 0, whole[3:12], 0.2
    )
    assert (whole[:3] == 7).all()
    assert (whole[12:] == 7).all()


def test_slots_that_do_not_exist_are_left_out(device: str) -> None:
    from dlinfer.vendors.triton.launching import kernel as KERNELS

    pages = _paged(device, [16])
    key, value = pages["key_cache"], pages["value_cache"]
    before = key.clone()
    slots = torch.tensor([3, -1, -9, key.shape[0] * key.shape[1], 10**9], device=device)
    states = torch.ones(5, *key.shape[2:], device=device)
    KERNELS["fill_kv_cache"](states, key, states, value, slots)
    changed = (key != before).flatten(2).any(-1).nonzero().tolist()
    assert changed == [[0, 3]]
    assert (key[0, 3] == 1).all()


@pytest.mark.parametrize("expert", [-1, 4])
def test_an_expert_that_does_not_exist_gives_nan_to_its_token_alone(device: str, expert: int) -> None:
    from dlinfer.vendors.triton.launching import kernel as KERNELS

    generator = torch.Generator().manual_seed(0)
    x, up, down = (
        torch.randn(shape, generator=generator).to(device) for shape in ((3, 16), (4, 16, 16), (4, 16, 8))
    )
    weights, ids = torch.ones(3, 2, device=device), torch.tensor([[0, 1], [1, 2], [3, 0]], device=device)
    expected = REFERENCE["fused_moe"](x, up, down, weights, ids)
    ids[1, 0] = expert
    got = KERNELS["fused_moe"](x, up, down, weights, ids)
    assert got[1].isnan().all()
    torch.testing.assert_close(got[::2], expected[::2], rtol=1e-4, atol=1e-4)


def test_float64_falls_to_the_reference(device: str) -> None:
    hidden, weight = torch.randn(3, 8, dtype=torch.float64, device=device), torch.ones(8, device=device)
    got = OVERLOADS["rms_norm"](hidden, weight, 1e-6)
    torch.testing.assert_close(got, REFERENCE["rms_norm"](hidden, weight, 1e-6), rtol=0, atol=0)


@pytest.mark.parametrize("size", [24, 72, 80, 96, 192])
def test_heads_that_are_no_power_of_two(device: str, size: int) -> None:
    pages, query = _paged(device, [40, 9], size=size), _query(device, 2, size=size)
    torch.testing.assert_close(_decode(pages, query), _expected(pages, query), rtol=3e-5, atol=3e-5)


def test_latent_attention_has_values_inside_of_wide_keys(device: str) -> None:
    pages = _paged(device, [33, 5], kv_heads=1, size=576)
    pages["value_cache"] = pages["key_cache"][..., :512]
    query = _query(device, 2, 16, 576)
    got, expected = (torch.empty(2, 16, 512, device=device) for _ in range(2))
    OVERLOADS["paged_decode_attention"](query, *pages.values(), 0, got, 0.04)
    REFERENCE["paged_decode_attention"](query, *pages.values(), 0, expected, 0.04)
    torch.testing.assert_close(got, expected, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("rows", [3, 70])
@pytest.mark.parametrize("kind", ["AWQ", "4 bits", "8 bits"])
def test_weights_of_few_bits_with_few_and_with_many_rows(device: str, rows: int, kind: str) -> None:
    """A deep product of few rows is shared out; for many rows weights are made numbers first."""
    generator = torch.Generator().manual_seed(0)
    x, scale = torch.randn(rows, 512, generator=generator), torch.rand(4, 64, generator=generator)
    packed = torch.randint(-(2**31), 2**31 - 1, (512, 8), generator=generator, dtype=torch.int32)
    weight = (
        torch.randint(-128, 128, (512, 64), generator=generator).to(torch.int8)
        if kind == "8 bits"
        else packed
    )
    offset = packed[:4].clone() if kind == "AWQ" else None
    bias = torch.randn(64, generator=generator)
    arguments = [None if t is None else t.to(device) for t in (x, weight, scale, offset, bias)]
    got = OVERLOADS["weight_quant_matmul"](*arguments, 128)
    expected = REFERENCE["weight_quant_matmul"](*arguments, 128)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


CASES = {
    "paged_decode_attention": 6,
    "paged_prefill_attention": 6,
    "prefill_attention": 4,
    "fused_attention": 2,
    "incre_flash_attention": 3,
    "fill_kv_cache": 6,
    "rms_norm": 4,
    "add_rms_norm_w8a8": 4,
    "silu_and_mul": 3,
    "apply_rotary_pos_emb": 3,
    "apply_rotary_pos_emb_interleaved": 3,
    "dynamic_quant": 4,
    "linear_w8a8": 3,
    "linear_w8a8_static": 2,
    "weight_quant_matmul": 4,
    "fused_moe": 3,
    "fused_moe_w8a8": 3,
}


@pytest.mark.parametrize("operator", CASES)
def test_some_cases_of_the_conformance_suite(device: str, operator: str) -> None:
    from dicore.conformance.worker import evenly
    from dlinfer.conformance.judging import check
    from dlinfer.conformance.samples import SAMPLES, make

    for number in evenly(SAMPLES[operator].count, CASES[operator]):
        result = check(make(operator, number, 0), "triton", device)
        assert result.status == "pass", f"{result.id}: {result.reason}"
