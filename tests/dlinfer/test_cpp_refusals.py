"""What cpp's kernels must not take: dtypes that they do not know, and numbers that the reference behind them does not look at."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dlinfer.errors import DlinferArgumentError
from dlinfer.reference import KERNELS

_cpp: Any = pytest.importorskip("dlinfer._cpp")
pytestmark = pytest.mark.unit

KINDS = (torch.float32, torch.bfloat16, torch.float16)
DTYPES = (*KINDS, torch.float64)


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(17)


# ---- quantised caches ----


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("value_dtype", DTYPES)
@pytest.mark.parametrize("key_dtype", DTYPES)
def test_keys_and_values_of_a_quantised_cache_have_dtypes_of_their_own(
    key_dtype: torch.dtype, value_dtype: torch.dtype, bits: int
) -> None:
    key, value = torch.randn(5, 2, 8, dtype=key_dtype), torch.randn(5, 2, 8, dtype=value_dtype)
    slots = torch.tensor([7, 0, -1, 3, 9])
    scale, zero = torch.tensor([3 / 2**bits]), torch.tensor([2.0 ** (bits - 1)])
    filled = []
    for fill in (_cpp.fill_kv_cache, KERNELS["fill_kv_cache"]):
        caches = [torch.zeros(3, 4, 2, bits, dtype=torch.uint8) for _ in range(2)]
        fill(key, caches[0], value, caches[1], slots, scale, zero, scale, zero, bits)
        filled.append(caches)
    for mine, wanted in zip(*filled, strict=True):
        assert wanted.any() and torch.equal(mine, wanted)


@pytest.mark.parametrize("bits", [8, 4])
def test_what_is_no_number_is_stored_as_the_zero_of_integers(bits: int) -> None:
    """Whatever its other bits are: none of them come into the other half of its byte."""
    key = torch.zeros(1, 1, 8)
    key.view(torch.int32)[0, 0, 1:7] = torch.tensor(
        [0x7FC000FF, -1, 0x7FFFFFFF, -1, 0x7F800001, 0x7FC00000]
    ).int()
    filled = []
    for fill in (_cpp.fill_kv_cache, KERNELS["fill_kv_cache"]):
        cache = torch.zeros(1, 1, 1, bits, dtype=torch.uint8)
        fill(
            key,
            cache,
            None,
            None,
            torch.tensor([0]),
            torch.tensor([0.2]),
            torch.tensor([9.0]),
            None,
            None,
            bits,
        )
        filled.append(cache)
    assert torch.equal(*filled)


def test_no_kernel_reads_a_dtype_that_it_does_not_know() -> None:
    """Where the interface was gone around: an error, never memory read as another dtype."""
    query, cos = torch.randn(3, 2, 8), torch.randn(3, 8)
    with pytest.raises(RuntimeError, match="take float32, bfloat16 and float16, got Double"):
        _cpp.apply_rotary_pos_emb(query, query.double(), cos, cos)
    key, lengths, output = torch.randn(3, 2, 8), torch.tensor([3]), torch.zeros(3, 2, 8)
    with pytest.raises(RuntimeError, match="take float32, bfloat16 and float16, got Double"):
        _cpp.prefill_attention(query, key, key.double(), torch.tensor([0, 3]), lengths, 3, output, 0.3)
    assert not output.any()


# ---- experts ----


def _experts(dtype: torch.dtype, tokens: int = 3, hidden: int = 8, inner: int = 6) -> dict[str, Tensor]:
    return {
        "hidden_states": torch.randn(tokens, hidden, dtype=dtype),
        "gate_up_weights": torch.randn(4, 2 * inner, hidden, dtype=dtype),
        "down_weights": torch.randn(4, hidden, inner, dtype=dtype),
        "topk_weights": torch.rand(tokens, 2),
        "topk_ids": torch.tensor([[0, 3]] * tokens, dtype=torch.int32),
    }


def _quantised(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same call with weights of 8 bits."""
    found = {}
    for name, tensor in given.items():
        if name in ("gate_up_weights", "down_weights"):
            found[name] = torch.randint(-128, 128, tensor.shape, dtype=torch.int8)
            found[name.replace("weights", "scales")] = torch.rand(tensor.shape[:2]) / 100
        else:
            found[name] = tensor
    return found


FORMS: dict[str, dict[str, Any]] = {
    **{str(dtype): {"dtype": dtype} for dtype in DTYPES},
    "no hidden elements": {"dtype": torch.float32, "hidden": 0},
    "no inner elements": {"dtype": torch.float32, "inner": 0},
}


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["fused_moe", "fused_moe_w8a8"])
def test_experts_that_do_not_exist_are_refused_in_every_form(name: str, form: str, bad: int) -> None:
    given = _experts(**FORMS[form])
    if name == "fused_moe_w8a8":
        given = _quantised(given)
    getattr(_cpp, name)(**given)
    given["topk_ids"][1, 1] = bad
    with pytest.raises(DlinferArgumentError, match=rf"holds {bad}, expected 0 to 3\b") as caught:
        getattr(_cpp, name)(**given)
    assert (caught.value.operator, caught.value.argument) == (name, "topk_ids")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_experts_of_other_parts_exist(dtype: torch.dtype) -> None:
    given = _experts(dtype)
    given["topk_ids"][:, 1] = 11
    mine = _cpp.fused_moe(**given, first_expert=0, num_experts=12)
    wanted = KERNELS["fused_moe"](**given, first_expert=0, num_experts=12)
    assert torch.allclose(mine, wanted, rtol=1e-4, atol=1e-4)
    given["topk_ids"][0, 0] = 12
    with pytest.raises(DlinferArgumentError, match="holds 12, expected 0 to 11"):
        _cpp.fused_moe(**given, first_expert=0, num_experts=12)


# ---- newest tokens ----


def _decode(lengths: list[int], new: int, dtype: torch.dtype) -> Tensor:
    key, batch = torch.randn(6, 4, 1, 8, dtype=dtype), len(lengths)
    table = torch.arange(6).view(batch, -1)
    output = torch.full((batch * new, 2, 8), 7.0, dtype=dtype)
    query = torch.randn(batch * new, 2, 8, dtype=dtype)
    _cpp.paged_decode_attention(query, key, key, table, torch.tensor(lengths), 0, output, 0.3)
    return output


@pytest.mark.parametrize("dtype", DTYPES)
def test_fewer_keys_than_newest_tokens_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(DlinferArgumentError, match="element 1 is 2, less than its 3 query tokens") as caught:
        _decode([3, 2], 3, dtype)
    assert (caught.value.operator, caught.value.argument) == ("paged_decode_attention", "kv_lengths")
    padded = _decode([3, 0], 3, dtype)
    assert padded[:3].any() and not padded[3:].any()
