"""Wrong arguments: an error that names the argument, never a crash and never a silent wrong result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dlinfer import ops
from dlinfer.errors import DlinferArgumentError
from dlinfer.vendors import using

pytestmark = pytest.mark.unit

F = torch.float32


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def ones(*shape: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.ones(shape, dtype=dtype)


def prefill(**changes: Any) -> Tensor:
    given: dict[str, Any] = {
        "query": ones(5, 4, 8), "key": ones(5, 2, 8), "value": ones(5, 2, 8), "key_cache": None, "value_cache": None,
        "q_seqlens": ints(3, 2), "kv_seqlens": ints(3, 2), "max_q_seq_len": 3, "num_q_heads": 4, "num_kv_heads": 2,
        "attn_mask": [],
    }  # fmt: skip
    return ops.prefill_attention(**{**given, **changes})


def prefill_old(**changes: Any) -> Tensor:
    given: dict[str, Any] = {
        "query": ones(5, 4, 8), "key": ones(5, 2, 8), "value": ones(5, 2, 8), "key_cache": None, "value_cache": None,
        "q_start_loc": ints(0, 3), "q_seq_len": ints(3, 2), "kv_seq_len": ints(3, 2), "max_q_seq_len": 3,
        "num_q_heads": 4, "num_kv_heads": 2, "attn_mask": [],
    }  # fmt: skip
    return ops.prefill_attention(**{**given, **changes})


def paged(**changes: Any) -> Tensor:
    given: dict[str, Any] = {
        "query": ones(5, 4, 8), "key": None, "value": None, "key_cache": ones(6, 4, 2, 8), "value_cache": ones(6, 4, 2, 8),
        "block_table": torch.tensor([[0, 1], [2, 3]], dtype=torch.int32), "block_size": 4,
        "actual_q_seqlens_cpu": ints(3, 5), "kv_seqlens_cpu": ints(7, 2), "max_q_seq_len": 3, "max_kv_seq_len": 7,
        "num_q_heads": 4, "num_kv_heads": 2, "attn_mask": [],
    }  # fmt: skip
    return ops.paged_prefill_attention(**{**given, **changes})


def decode(**changes: Any) -> Tensor:
    given: dict[str, Any] = {
        "query": ones(2, 4, 8), "key_cache": ones(6, 4, 2, 8), "value_cache": ones(6, 4, 2, 8),
        "block_table": torch.tensor([[0, 1], [2, 3]], dtype=torch.int32), "block_size": 4, "q_seq_len": ints(1, 1),
        "kv_seq_len": ints(7, 2), "max_kv_seq_len": 7, "num_q_heads": 4, "num_kv_heads": 2,
    }  # fmt: skip
    return ops.paged_decode_attention(**{**given, **changes})


def fill(**changes: Any) -> Any:
    given: dict[str, Any] = {
        "key": ones(3, 2, 8), "value": ones(3, 2, 8), "key_cache": ones(2, 4, 2, 8), "value_cache": ones(2, 4, 2, 8),
        "kv_indices": ints(0, 1, 7),
    }  # fmt: skip
    return ops.fill_kv_cache(**{**given, **changes})


def one_cache_for_both() -> Any:
    cache = ones(2, 4, 2, 8)
    return fill(key_cache=cache, value_cache=cache)


def moe(**changes: Any) -> Tensor:
    given: dict[str, Any] = {
        "hidden_states": ones(3, 8), "gate_up_weights": ones(4, 12, 8), "down_weights": ones(4, 8, 6),
        "topk_weights": ones(3, 2), "topk_ids": torch.zeros(3, 2, dtype=torch.int64), "topk": 2, "renormalize": False,
    }  # fmt: skip
    return ops.fused_moe(**{**given, **changes})


def indexer(**changes: Any) -> Tensor:
    given: dict[str, Any] = {
        "query": ones(3, 2, 8), "key": ones(4, 4, 1, 8), "weights": ones(3, 2), "actual_seq_lengths_query": ints(1, 3),
        "actual_seq_lengths_key": ints(4, 6), "block_table": torch.tensor([[0, 1], [2, 3]]), "sparse_count": 3,
    }  # fmt: skip
    return ops.lightning_indexer(**{**given, **changes})


def sparse(**changes: Any) -> Tensor:
    given: dict[str, Any] = {
        "query": ones(3, 2, 8), "key": ones(4, 4, 1, 8), "value": ones(4, 4, 1, 8),
        "sparse_indices": torch.zeros(3, 1, 2, dtype=torch.int32), "softmax_scale": 1.0,
        "block_table": torch.tensor([[0, 1], [2, 3]]), "actual_seq_lengths_query": ints(1, 3), "kv_seqlens": ints(4, 6),
    }  # fmt: skip
    return ops.sparse_flash_attention(**{**given, **changes})


def test_the_calls_that_are_made_wrong_below_are_right() -> None:
    for call in (prefill, prefill_old, paged, decode, fill, moe, indexer, sparse):
        call()


HALF, INT8 = torch.float16, torch.int8
TABLE = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
rotary, pairs, increment = (
    ops.apply_rotary_pos_emb,
    ops.apply_rotary_pos_emb_interleaved,
    ops.incre_flash_attention,
)
append, static, packed, w8a8 = (
    ops.fill_contiguous_kvcache,
    ops.linear_w8a8_static,
    ops.weight_quant_matmul,
    ops.linear_w8a8,
)


def i8(*shape: int) -> Tensor:
    return ones(*shape, dtype=torch.int8)


def i32(*shape: int) -> Tensor:
    return ones(*shape, dtype=torch.int32)


EIGHT: dict[str, Any] = {"key_cache": i8(6, 4, 2, 8), "value_cache": i8(6, 4, 2, 8), "quant_bits": 8}
SMALL: dict[str, Any] = {"key_cache": i8(2, 4, 2, 8), "value_cache": i8(2, 4, 2, 8), "quant_bits": 8}
WRONG: list[tuple[str, str, Callable[[], Any]]] = [
    # shapes
    ("rms_norm", "weight", lambda: ops.rms_norm(ones(2, 8), ones(7), 1e-6)),
    ("rms_norm", "weight", lambda: ops.rms_norm(ones(2, 8), ones(8, 1), 1e-6)),
    ("rms_norm", "hidden_states", lambda: ops.rms_norm(torch.tensor(1.0), ones(1), 1e-6)),
    ("add_rms_norm", "residual", lambda: ops.add_rms_norm(ones(2, 8), ones(1, 8), ones(8), 1e-6)),
    ("silu_and_mul", "input_tensor", lambda: ops.silu_and_mul(ones(2, 7))),
    ("silu_and_mul", "dim", lambda: ops.silu_and_mul(ones(2, 8), 2)),
    ("apply_rotary_pos_emb", "cos", lambda: rotary(ones(3, 2, 8), ones(3, 1, 8), ones(2, 8), ones(3, 8))),
    ("apply_rotary_pos_emb", "sin", lambda: rotary(ones(3, 2, 8), ones(3, 1, 8), ones(3, 8), ones(3, 16))),
    ("apply_rotary_pos_emb", "key", lambda: rotary(ones(3, 2, 8), ones(4, 1, 8), ones(3, 8), ones(3, 8))),
    ("apply_rotary_pos_emb", "cos", lambda: rotary(ones(3, 2, 8), ones(3, 1, 8), None, None)),
    ("apply_rotary_pos_emb_interleaved", "cos", lambda: pairs(ones(3, 2, 1, 8), ones(3, 4), ones(3, 4))),
    ("linear", "x", lambda: ops.linear(ones(2, 7), ones(4, 8))),
    ("linear", "bias", lambda: ops.linear(ones(2, 8), ones(4, 8), ones(5))),
    ("prefill_attention", "key", lambda: prefill(key=ones(5, 2, 16))),
    ("prefill_attention", "value", lambda: prefill(value=ones(4, 2, 8))),
    ("prefill_attention", "query", lambda: prefill(query=ones(5, 3, 8), num_q_heads=3)),
    ("prefill_attention", "num_q_heads", lambda: prefill(num_q_heads=8)),
    ("prefill_attention", "num_kv_heads", lambda: prefill(num_kv_heads=4)),
    ("prefill_attention", "attn_output", lambda: prefill(attn_output=ones(5, 4, 4))),
    ("prefill_attention", "alibi_slopes", lambda: prefill(alibi_slopes=ones(3))),
    ("prefill_attention", "attn_mask", lambda: prefill(attn_mask=[i8(4, 5)])),
    ("prefill_attention", "attn_mask", lambda: prefill(attn_mask=[torch.ones(5, 5, dtype=torch.bool).tril(-1)])),
    ("prefill_attention", "attn_mask", lambda: prefill_old(attn_mask=[torch.ones(2, 5, dtype=torch.bool)])),
    ("prefill_attention", "attn_mask", lambda: prefill_old(attn_mask=[torch.ones(5, 2, dtype=torch.bool)])),
    ("paged_prefill_attention", "block_size", lambda: paged(block_size=8)),
    ("paged_prefill_attention", "value_cache", lambda: paged(value_cache=ones(5, 4, 2, 8))),
    ("paged_prefill_attention", "key_cache", lambda: paged(key_cache=ones(6, 4, 2, 16))),
    ("paged_prefill_attention", "block_table", lambda: paged(block_table=ints(0, 1))),
    ("paged_prefill_attention", "head_size_v", lambda: paged(head_size_v=64)),
    ("incre_flash_attention", "input_layout", lambda: increment(ones(1, 1, 8), ones(1, 2, 8), ones(1, 2, 8), 2, "SBH")),
    ("incre_flash_attention", "num_heads", lambda: increment(ones(1, 1, 8), ones(1, 2, 8), ones(1, 2, 8), 3)),
    ("incre_flash_attention", "key", lambda: increment(ones(2, 1, 8), ones(1, 2, 8), ones(1, 2, 8), 2)),
    ("fused_attention", "key", lambda: ops.fused_attention(ones(1, 3, 2, 8), ones(1, 2, 2, 8), ones(1, 2, 2, 8))),
    ("fused_attention", "mask", lambda: ops.fused_attention(ones(1, 3, 2, 8), ones(1, 3, 2, 8), ones(1, 3, 2, 8), [ones(2, 3)])),
    ("fill_kv_cache", "kv_indices", lambda: fill(kv_indices=ints(0, 1))),
    ("fill_kv_cache", "key", lambda: fill(key=ones(3, 16))),
    ("fill_kv_cache", "value_cache", one_cache_for_both),
    ("fill_kv_cache", "key_cache", lambda: fill(key=ones(3, 2, 4))),
    ("fill_contiguous_kvcache", "key_state", lambda: append(*[ones(1, 2, 2, 4)] * 2, ones(2, 1, 2, 4), ones(1, 1, 2, 4))),
    ("get_cache_len", "cache", lambda: ops.get_cache_len(ones(2, 3))),
    ("fused_moe", "topk", lambda: moe(topk=3)),
    ("fused_moe", "down_weights", lambda: moe(down_weights=ones(4, 8, 5))),
    ("fused_moe", "gate_up_weights", lambda: moe(gate_up_weights=ones(4, 12, 9))),
    ("fused_moe", "chunked_moe_layout", lambda: moe(chunked_moe_layout=object())),
    ("moe_gating_topk_softmax", "topk", lambda: ops.moe_gating_topk_softmax(ones(2, 4), 5)),
    ("linear_w8a8", "rms_scale", lambda: w8a8(i8(2, 4), i8(3, 4), ones(3), ones(3), F, INT8)),
    ("linear_w8a8_static", "deq_scale", lambda: static(ones(2, 4), i8(3, 4), ones(1), ones(1), ones(4), F)),
    ("weight_quant_matmul", "group_size", lambda: packed(ones(2, 8), i32(8, 1), ones(1, 8), group_size=3)),
    ("weight_quant_matmul", "scale", lambda: packed(ones(2, 8), i32(8, 1), ones(2, 8), group_size=8)),
    ("sparse_flash_attention", "sparse_indices", lambda: sparse(sparse_indices=torch.zeros(3, 2, dtype=torch.int32))),
    ("sparse_flash_attention", "key_rope", lambda: sparse(query_rope=ones(3, 2, 4))),
    # dtypes
    ("rms_norm", "hidden_states", lambda: ops.rms_norm(i32(2, 8), ones(8), 1e-6)),
    ("add_rms_norm", "residual", lambda: ops.add_rms_norm(ones(2, 8), ones(2, 8, dtype=HALF), ones(8), 1e-6)),
    ("prefill_attention", "key", lambda: prefill(key=ones(5, 2, 8, dtype=HALF))),
    ("prefill_attention", "kv_lengths", lambda: prefill(kv_seqlens=ones(2))),
    ("paged_decode_attention", "key_cache", lambda: decode(key_cache=i8(6, 4, 2, 8))),
    ("paged_decode_attention", "block_table", lambda: decode(block_table=TABLE.float())),
    ("paged_decode_attention", "quant_bits", lambda: decode(quant_bits=3)),
    ("paged_decode_attention", "kv_scales", lambda: decode(**EIGHT)),
    ("paged_decode_attention", "kv_scales", lambda: decode(**EIGHT, kv_scales=ones(3))),
    ("fill_kv_cache", "key_scale", lambda: fill(**SMALL)),
    ("fill_kv_cache", "key_cache", lambda: fill(key_cache=i8(2, 4, 2, 4), quant_bits=4)),
    ("fill_kv_cache", "k_scales_zeros", lambda: fill(k_scales_zeros=[ones(1)] * 3)),
    ("dynamic_quant", "quant_dtype", lambda: ops.dynamic_quant(ones(2, 4), torch.int16)),
    ("dynamic_quant", "quant_granularity", lambda: ops.dynamic_quant(ones(2, 4), INT8, "PER_GROUP")),
    ("linear_w8a8", "a", lambda: w8a8(ones(2, 4), i8(3, 4), ones(2), ones(3), F, INT8)),
    ("linear_w8a8", "out_dtype", lambda: w8a8(i8(2, 4), i8(3, 4), ones(2), ones(3), INT8, INT8)),
    ("linear_w8a8_static", "quant_bias", lambda: static(ones(2, 4), i8(3, 4), ones(1), ones(1), ones(3), F, INT8, ones(3))),
    ("weight_quant_matmul", "x2", lambda: packed(ones(2, 8), ones(8, 1), ones(8))),
    ("fused_moe", "topk_ids", lambda: moe(topk_ids=ones(3, 2))),
    ("fused_moe", "down_weights", lambda: moe(down_weights=ones(4, 8, 6, dtype=HALF))),
]  # fmt: skip
# Tables, lengths that disagree, caches that are too small. Some vendors look at values themselves.
WRONG_VALUES: list[tuple[str, str, Callable[[], Any]]] = [
    ("paged_decode_attention", "block_table", lambda: decode(block_table=TABLE + 5)),
    ("paged_decode_attention", "block_table", lambda: decode(block_table=TABLE - 1)),
    ("paged_decode_attention", "kv_lengths", lambda: decode(kv_seq_len=ints(9, 2), max_kv_seq_len=9)),
    ("paged_decode_attention", "kv_lengths", lambda: decode(kv_seq_len=ints(7, -2))),
    ("paged_decode_attention", "kv_lengths", lambda: decode(kv_seq_len=ints(7))),
    ("paged_decode_attention", "max_kv_len", lambda: decode(max_kv_seq_len=5)),
    ("paged_decode_attention", "q_seq_len", lambda: decode(q_seq_len=ints(1, 3))),
    ("paged_decode_attention", "kv_lengths", lambda: decode(query=ones(4, 4, 8), q_seq_len=None, kv_seq_len=ints(7, 1))),
    ("paged_decode_attention", "query", lambda: decode(query=ones(3, 4, 8), q_seq_len=None)),
    ("paged_prefill_attention", "block_table", lambda: paged(block_table=TABLE * 3)),
    ("paged_prefill_attention", "cu_seqlens_q", lambda: paged(actual_q_seqlens_cpu=ints(3, 6))),
    ("paged_prefill_attention", "cu_seqlens_q", lambda: paged(actual_q_seqlens_cpu=ints(6, 5))),
    ("paged_prefill_attention", "kv_lengths", lambda: paged(kv_seqlens_cpu=ints(2, 2))),
    ("paged_prefill_attention", "max_q_len", lambda: paged(max_q_seq_len=2)),
    ("prefill_attention", "kv_lengths", lambda: prefill(kv_seqlens=ints(3, 3))),
    ("prefill_attention", "cu_seqlens_q", lambda: prefill(q_seqlens=ints(3, 1))),
    ("prefill_attention", "q_seq_len", lambda: prefill_old(q_seq_len=ints(2, 2))),
    ("prefill_attention", "q_start_loc", lambda: prefill_old(q_start_loc=ints(0, 1, 2, 3))),
    ("fill_kv_cache", "kv_indices", lambda: fill(kv_indices=ints(0, 1, 8))),
    ("fill_kv_cache", "kv_indices", lambda: fill(kv_indices=ints(0, 1, -2))),
    ("fused_moe", "topk_ids", lambda: moe(topk_ids=torch.full((3, 2), 4))),
    ("fused_moe", "topk_ids", lambda: moe(topk_ids=torch.full((3, 2), -1))),
    ("lightning_indexer", "block_table", lambda: indexer(block_table=TABLE + 2)),
    ("lightning_indexer", "sparse_count", lambda: indexer(sparse_count=0)),
    ("sparse_flash_attention", "sparse_indices", lambda: sparse(sparse_indices=torch.full((3, 1, 2), 5))),
    ("sparse_flash_attention", "kv_lengths", lambda: sparse(kv_seqlens=ints(4, 1))),
]  # fmt: skip
WRONG += [  # other kinds of values
    ("rms_norm", "hidden_states", lambda: ops.rms_norm(None, ones(8), 1e-6)),  # type: ignore[arg-type]
    ("rms_norm", "weight", lambda: ops.rms_norm(ones(8), [1.0], 1e-6)),  # type: ignore[arg-type]
    ("rms_norm", "epsilon", lambda: ops.rms_norm(ones(8), ones(8), "small")),  # type: ignore[arg-type]
    ("rms_norm", "epsilon", lambda: ops.rms_norm(ones(8), ones(8), -1.0)),
    ("rms_norm", "epsilon", lambda: ops.rms_norm(ones(8), ones(8), float("nan"))),
    ("linear", "all_reduce", lambda: ops.linear(ones(2, 8), ones(4, 8), all_reduce=True)),
    ("set_cache_layout", "layout", lambda: ops.set_cache_layout("NSD")),
]  # fmt: skip


def named(cases: list[tuple[str, str, Callable[[], Any]]]) -> Any:
    ids = [f"{i}-{operator}-{argument}" for i, (operator, argument, _) in enumerate(cases)]
    return pytest.mark.parametrize(("operator", "argument", "call"), cases, ids=ids)


@named(WRONG)
def test_a_wrong_argument_is_named(operator: str, argument: str, call: Callable[[], Any]) -> None:
    refused(operator, argument, call)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("vendor", ["ref", "cpp"])
@named(WRONG_VALUES)
def test_every_vendor_refuses_wrong_values_in_every_dtype(
    operator: str, argument: str, call: Callable[[], Any], vendor: str, dtype: torch.dtype
) -> None:
    if vendor == "cpp":
        pytest.importorskip("dlinfer._cpp")
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with using(vendor):
            refused(operator, argument, call)
    finally:
        torch.set_default_dtype(before)


def refused(operator: str, argument: str, call: Callable[[], Any]) -> None:
    with pytest.raises(DlinferArgumentError) as caught:
        call()
    assert (caught.value.operator, caught.value.argument) == (operator, argument), caught.value
    assert str(caught.value).startswith(f"dlinfer.{operator}: {argument}: ")
    assert isinstance(caught.value, ValueError)


def test_the_message_says_what_was_wrong_and_what_was_expected() -> None:
    with pytest.raises(
        DlinferArgumentError, match=r"block_table: \[0, 0\] is 9, expected 0 to 5: the cache has 6 blocks"
    ):
        decode(block_table=TABLE + 9)
    with pytest.raises(DlinferArgumentError, match=r"2 blocks of 4 in block_table hold 8"):
        decode(kv_seq_len=ints(9, 2), max_kv_seq_len=9)


def test_padding_behind_a_sequence_s_blocks_is_not_looked_at() -> None:
    table = torch.tensor([[0, 1], [2, -99]], dtype=torch.int32)
    assert torch.equal(decode(block_table=table), decode())


@pytest.mark.parametrize("check", ["", "0", "1"])
def test_the_reference_checks_values_whatever_is_set(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLINFER_CHECK", check)
    with using("ref"), pytest.raises(DlinferArgumentError, match="block_table"):
        decode(block_table=TABLE + 5)
