"""Every operator beside numbers that were worked out by hand, not by the formula the reference uses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dlinfer import ops
from dlinfer.utils.type_annotation import MoeMetadata

pytestmark = pytest.mark.unit

E = math.e


def t(*values: object, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values[0] if len(values) == 1 else values, dtype=dtype)


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def near(got: Tensor, expected: Tensor, atol: float = 1e-6) -> None:
    torch.testing.assert_close(got, expected.to(got.dtype), atol=atol, rtol=1e-6)


# ---- norms and activations ----


def test_rms_norm() -> None:
    # 3, 4: mean of squares 12.5; with epsilon 12.5 the root is 5.
    near(ops.rms_norm(t([[3.0, 4.0]]), t([1.0, 10.0]), 12.5), t([[0.6, 8.0]]))


def test_rms_norm_of_halves_is_rounded_once() -> None:
    got = ops.rms_norm(torch.ones(1, 3, dtype=torch.bfloat16), t([1.0, 2.0, 3.0]), 3.0)
    near(got, t([[0.5, 1.0, 1.5]]))
    assert got.dtype == torch.bfloat16


def test_add_rms_norm() -> None:
    norm, total = ops.add_rms_norm(t([[1.0, 5.0]]), t([[2.0, -1.0]]), t([2.0, 2.0]), 12.5)
    near(total, t([[3.0, 4.0]]))
    near(norm, t([[1.2, 1.6]]))


def test_rms_norm_w8a8() -> None:
    # The norm is 0.6, 0.8: the scale is 0.8 / 127, and 0.6 is 95.25 of them.
    number, scale = ops.rms_norm_w8a8(t([[3.0, 4.0]]), t([1.0, 1.0]), 12.5)
    assert number.tolist() == [[95, 127]] and number.dtype == torch.int8
    near(scale, t([0.8 / 127]))


def test_add_rms_norm_w8a8() -> None:
    number, scale, total = ops.add_rms_norm_w8a8(
        t([[3.5, -5.0]]), t([[-0.5, 1.0]]), t([1.0, 1.0]), 12.5, torch.int8
    )
    assert number.tolist() == [[95, -127]]
    near(scale, t([0.8 / 127]))
    near(total, t([[3.0, -4.0]]))


def test_silu_and_mul() -> None:
    # silu(0) = 0; silu(ln 3) = ln 3 * 3/4.
    near(ops.silu_and_mul(t([[0.0, math.log(3), 5.0, 4.0]])), t([[0.0, 3 * math.log(3)]]))
    near(ops.silu_and_mul(t([[math.log(3)], [8.0]]), 0), t([[6 * math.log(3)]]))


# ---- rotary ----


def test_rotary_turns_halves() -> None:
    # A quarter turn of the pair (0, 2), no turn of the pair (1, 3).
    cos, sin = t([[0.0, 1.0, 0.0, 1.0]]), t([[1.0, 0.0, 1.0, 0.0]])
    query, key = t([[[1.0, 2.0, 3.0, 4.0]]]), t([[[5.0, 6.0, 7.0, 8.0]]])
    turned, turned_key = ops.apply_rotary_pos_emb(query, key, cos, sin)
    near(turned, t([[[-3.0, 2.0, 1.0, 4.0]]]))
    near(turned_key, t([[[-7.0, 6.0, 5.0, 8.0]]]))
    assert query.tolist() == [[[1.0, 2.0, 3.0, 4.0]]], "the longer call form writes, this one does not"


def test_rotary_of_a_part_leaves_the_rest() -> None:
    cos, sin = t([[0.0, 0.0]]), t([[1.0, 1.0]])
    turned, _ = ops.apply_rotary_pos_emb(t([[[1.0, 2.0, 30.0]]]), t([[[1.0, 2.0, 40.0]]]), cos, sin)
    near(turned, t([[[-2.0, 1.0, 30.0]]]))


def test_rotary_interleaved() -> None:
    # Pairs (1, 2) and (3, 4): the first a quarter turn, the second none.
    states = t([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4)
    cos, sin = t([0.0, 1.0, 0.0, 1.0]).view(1, 1, 1, 4), t([1.0, 0.0, 1.0, 0.0]).view(1, 1, 1, 4)
    near(ops.apply_rotary_pos_emb_interleaved(states, cos, sin).flatten(), t([-2.0, 3.0, 1.0, 4.0]))
    near(ops.apply_rotary_pos_emb_interleaved(states, cos, sin, False).flatten(), t([-2.0, 1.0, 3.0, 4.0]))


# ---- caches ----


def test_fill_kv_cache() -> None:
    key_cache, value_cache = torch.zeros(2, 2, 1, 1), torch.full((2, 2, 1, 1), -1.0)
    key, value = t([1.0, 2.0, 3.0]).view(3, 1, 1), t([4.0, 5.0, 6.0]).view(3, 1, 1)
    got = ops.fill_kv_cache(key, value, key_cache, value_cache, ints(3, 0, -1))
    assert got[0] is key_cache and got[1] is value_cache
    assert key_cache.flatten().tolist() == [2.0, 0.0, 0.0, 1.0]
    assert value_cache.flatten().tolist() == [5.0, -1.0, -1.0, 4.0]


def test_fill_kv_cache_of_8_bits() -> None:
    caches = [torch.zeros(1, 2, 1, 3, dtype=torch.int8) for _ in range(2)]
    states = t([1.0, -0.25, 500.0]).view(1, 1, 3)
    ops.fill_kv_cache(states, states, *caches, ints(1), [t([0.5]), t([3.0])], [t([0.1]), None], 8)
    # 1 / 0.5 + 3 = 5; -0.5 + 3 = 2.5, half to even 2; beyond 127. Then 10, -2.5 to even -2, beyond.
    assert caches[0].flatten().tolist() == [0, 0, 0, 5, 2, 127]
    assert caches[1].flatten().tolist() == [0, 0, 0, 10, -2, 127]


def test_fill_kv_cache_of_4_bits() -> None:
    caches = [torch.zeros(1, 1, 1, 2, dtype=torch.uint8) for _ in range(2)]
    states = t([1.0, 2.0, 3.0, 99.0]).view(1, 1, 4)
    ops.fill_kv_cache(states, states, *caches, ints(0), [t([1.0]), t([8.0])], [t([1.0])], 4)
    # Elements 9 10 11 15: byte 0 has elements 0 (low) and 2 (high), byte 1 has 1 and 3. Then 1 2 3 15.
    assert caches[0].flatten().tolist() == [9 + 16 * 11, 10 + 16 * 15]
    assert caches[1].flatten().tolist() == [1 + 16 * 3, 2 + 16 * 15]


def test_caches_without_pages() -> None:
    cache, new = t([1.0, 2.0]).view(1, 2, 1, 1), t([3.0]).view(1, 1, 1, 1)
    keys, values = ops.fill_contiguous_kvcache(cache, cache * 10, new, new * 10)
    assert keys.flatten().tolist() == [1, 2, 3] and values.flatten().tolist() == [10, 20, 30]
    assert ops.get_cache_len(keys) == 3


# ---- attention ----
# Scores are chosen so that softmax gives thirds and quarters: exp(ln 3) = 3.

LN3 = math.log(3)


def test_prefill_attention_is_causal_for_each_sequence() -> None:
    query = t([1.0, 1.0, 1.0]).view(3, 1, 1)
    key = t([0.0, LN3, 7.0]).view(3, 1, 1)
    value = t([8.0, 16.0, 5.0]).view(3, 1, 1)
    got = ops.prefill_attention(
        query, key, value, key, value, ints(2, 1), ints(2, 1), 2, 1, 1, [], softmax_scale=1.0
    )
    # The first sees 8; the second 1/4 * 8 + 3/4 * 16; the third is a sequence of its own.
    near(got.flatten(), t([8.0, 14.0, 5.0]))


def test_prefill_attention_without_cache_or_mask_sees_everything() -> None:
    query, key = t([1.0, 1.0]).view(2, 1, 1), t([0.0, LN3]).view(2, 1, 1)
    value = t([8.0, 16.0]).view(2, 1, 1)
    got = ops.prefill_attention(
        query, key, value, None, None, ints(2), ints(2), 2, 1, 1, [], softmax_scale=1.0
    )
    near(got.flatten(), t([14.0, 14.0]))


def _cache(*values: float, size: int = 1) -> Tensor:
    """Blocks of two tokens with one head."""
    return t(list(values)).view(-1, 2, 1, size)


def test_paged_prefill_attention_after_a_prefix() -> None:
    # The sequence is blocks 2, 0: keys 0, ln 3, 0; the query stands at the third.
    key_cache = _cache(0.0, 99.0, 55.0, 55.0, 0.0, LN3)
    value_cache = _cache(20.0, 99.0, 55.0, 55.0, 5.0, 10.0)
    got = ops.paged_prefill_attention(
        t([1.0]).view(1, 1, 1), None, None, key_cache, value_cache, t([[2, 0]], dtype=torch.int32), 2,
        ints(1), ints(3), 1, 3, 1, 1, [], softmax_scale=1.0,
    )  # fmt: skip
    near(got.flatten(), t([(5.0 + 30.0 + 20.0) / 5]))


def test_paged_decode_attention_of_two_sequences() -> None:
    key_cache = _cache(0.0, LN3, 0.0, 0.0)
    value_cache = _cache(4.0, 8.0, 3.0, 99.0)
    table = t([[0], [1]], dtype=torch.int32)
    got = ops.paged_decode_attention(
        torch.ones(2, 1, 1),
        key_cache,
        value_cache,
        table,
        2,
        ints(1, 2),
        ints(2, 1),
        2,
        1,
        1,
        softmax_scale=1.0,
    )
    near(got.flatten(), t([7.0, 3.0]))


def test_grouped_heads_share_keys_in_order() -> None:
    # Heads 0 and 1 use key head 0 (value 1), heads 2 and 3 key head 1 (value 2).
    cache = t([1.0, 2.0]).view(1, 1, 2, 1)
    got = ops.paged_decode_attention(
        torch.ones(1, 4, 1), cache, cache, t([[0]], dtype=torch.int64), 1, None, ints(1), 1, 4, 2
    )
    near(got.flatten(), t([1.0, 1.0, 2.0, 2.0]))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"window_size": 2}, (8.0 + 3 * 16.0) / 4),  # only the last two keys
        ({"window_size": (0, 0)}, 16.0),
        # Distances 2, 1, 0 with slope ln 2: factors 1/4, 1/2, 1 on 1, 1, 3.
        ({"alibi_slopes": [math.log(2)]}, (4.0 / 4 + 8.0 / 2 + 3 * 16.0) / (1 / 4 + 1 / 2 + 3)),
        # tanh saturates: scores become 0, 0 and c * tanh(ln 3 / c); for c = ln 3 / atanh(0.5) that is c / 2.
        (
            {"logit_softcapping": LN3 / math.atanh(0.5)},
            (4.0 + 8.0 + 16.0 * E ** (LN3 / math.atanh(0.5) / 2)) / (2 + E ** (LN3 / math.atanh(0.5) / 2)),
        ),
        ({}, (4.0 + 8.0 + 3 * 16.0) / 5),
    ],
)
def test_what_changes_scores(changes: dict[str, object], expected: float) -> None:
    key_cache, value_cache = _cache(0.0, 0.0, LN3, 99.0), _cache(4.0, 8.0, 16.0, 99.0)
    got = ops.paged_decode_attention(
        torch.ones(1, 1, 1), key_cache, value_cache, t([[0, 1]], dtype=torch.int32), 2, None, ints(3), 3, 1, 1,
        softmax_scale=1.0, **changes,
    )  # fmt: skip
    near(got.flatten(), t([expected]), atol=1e-5)


def test_attention_over_a_quantised_cache() -> None:
    # Keys (stored - 2) * 0.5: 0 and 1; values (stored - 0) * 2: 8 and 16. A query of ln 3 makes scores 0, ln 3.
    key_cache = t([2, 4], dtype=torch.int8).view(1, 2, 1, 1)
    value_cache = t([4, 8], dtype=torch.int8).view(1, 2, 1, 1)
    got = ops.paged_decode_attention(
        t([LN3]).view(1, 1, 1), key_cache, value_cache, t([[0]], dtype=torch.int32), 2, None, ints(2), 2, 1, 1,
        softmax_scale=1.0, kv_scales=t([0.5, 2.0]), kv_zeros=t([2.0, 0.0]), quant_bits=8,
    )  # fmt: skip
    near(got.flatten(), t([14.0]))


def test_attention_over_a_cache_of_4_bits() -> None:
    # One byte has two elements: low 1, high 2, then low 3, high 2. Equal scores: the mean.
    cache = t([1 + 16 * 2, 3 + 16 * 2], dtype=torch.uint8).view(1, 2, 1, 1)
    got = ops.paged_decode_attention(
        torch.zeros(1, 1, 2), cache, cache, t([[0]], dtype=torch.int32), 2, None, ints(2), 2, 1, 1,
        kv_scales=t([1.0, 10.0]), quant_bits=4,
    )  # fmt: skip
    near(got.flatten(), t([20.0, 20.0]))


def test_values_of_another_size_inside_the_keys() -> None:
    cache = t([5.0, 6.0, 7.0]).view(1, 1, 1, 3)
    got = ops.paged_decode_attention(
        torch.ones(1, 2, 3),
        cache,
        cache[..., :0],
        t([[0]], dtype=torch.int32),
        1,
        None,
        ints(1),
        1,
        2,
        1,
        head_size_v=2,
    )
    near(got, t([[[5.0, 6.0], [5.0, 6.0]]]))


def test_a_sequence_without_keys_gets_zeros() -> None:
    cache = torch.ones(1, 1, 1, 1)
    output = torch.full((2, 1, 1), 9.0)
    table = t([[0], [-5]], dtype=torch.int32)
    got = ops.paged_decode_attention(
        torch.ones(2, 1, 1), cache, cache, table, 1, None, ints(1, 0), 1, 1, 1, attn_output=output
    )
    assert got is output and output.flatten().tolist() == [1.0, 0.0]


def test_incre_flash_attention_sees_all_keys() -> None:
    query, key, value = torch.ones(1, 1, 1), t([[[0.0], [LN3]]]), t([[[8.0], [16.0]]])
    near(ops.incre_flash_attention(query, key, value, 1, "BSH", 1.0).flatten(), t([14.0]))
    four = [tensor.unsqueeze(1) for tensor in (query, key, value)]
    near(ops.incre_flash_attention(*four, 1, "BNSD", 1.0).flatten(), t([14.0]))


def test_fused_attention() -> None:
    query, key = torch.ones(1, 2, 1, 1), t([0.0, LN3]).view(1, 2, 1, 1)
    value = t([8.0, 16.0]).view(1, 2, 1, 1)
    near(ops.fused_attention(query, key, value, []).flatten(), t([8.0, 14.0]))
    hides_first = t([[True, False], [True, False]], dtype=torch.bool)
    near(ops.fused_attention(query, key, value, [hides_first]).flatten(), t([16.0, 16.0]))


# ---- sparse attention ----


def test_lightning_indexer() -> None:
    # Scores of the keys 1, -2, 3, 2 for a query of 1 and a weight of 1: 1, 0, 3, 2.
    cache = t([1.0, -2.0, 3.0, 2.0]).view(2, 2, 1, 1)
    table = t([[0, 1]], dtype=torch.int32)
    got = ops.lightning_indexer(torch.ones(2, 1, 1), cache, torch.ones(2, 1), ints(2), ints(4), table, 3)
    # The first token stands at key 2 and does not see key 3.
    assert [sorted(row) for row in got[:, 0].tolist()] == [[0, 1, 2], [0, 2, 3]]
    few = ops.lightning_indexer(torch.ones(1, 1, 1), cache, -torch.ones(1, 1), ints(1), ints(2), table, 3)
    assert sorted(few.flatten().tolist()) == [-1, 0, 1]


def test_sparse_flash_attention() -> None:
    latent = t([4.0, 8.0, 16.0, 99.0]).view(2, 2, 1, 1)
    rope = t([0.0, 5.0, LN3, 5.0]).view(2, 2, 1, 1)
    got = ops.sparse_flash_attention(
        torch.zeros(1, 1, 1), latent, latent, t([[[2, 0, -1]]], dtype=torch.int32), 1.0,
        block_table=t([[0, 1]], dtype=torch.int32), actual_seq_lengths_query=ints(1), kv_seqlens=ints(3),
        query_rope=torch.ones(1, 1, 1), key_rope=rope,
    )  # fmt: skip
    near(got.flatten(), t([13.0]))  # 1/4 * 4 + 3/4 * 16


# ---- linear layers ----


def test_linear() -> None:
    near(ops.linear(t([[1.0, 2.0]]), t([[3.0, 4.0], [5.0, 6.0]]), t([100.0, 0.0])), t([[111.0, 17.0]]))


def test_transdata_is_a_copy() -> None:
    value = t([1.0, 2.0])
    got = ops.transdata(value)
    assert got.tolist() == [1.0, 2.0] and got is not value


def test_dynamic_quant() -> None:
    number, scale = ops.dynamic_quant(t([[2.54, -1.0], [0.0, 0.0]]), torch.int8)
    assert number.tolist() == [[127, -50], [0, 0]]  # the scale is 0.02
    near(scale, t([0.02, 1e-7 / 127]))
    number, scale = ops.dynamic_quant(t([[2.54], [1.27]]), torch.int8, "PER_TENSOR")
    assert number.tolist() == [[127], [64]] and scale.shape == (1,)  # 63.5, half to even


def test_dynamic_quant_to_float8() -> None:
    number, scale = ops.dynamic_quant(t([[896.0, 2.0]]), torch.float8_e4m3fn)
    assert number.float().tolist() == [[448.0, 1.0]] and scale.tolist() == [2.0]


def test_linear_w8a8() -> None:
    a, b = t([[1, 2], [3, -4]], dtype=torch.int8), t([[10, 20], [-1, 0], [127, 127]], dtype=torch.int8)
    got = ops.linear_w8a8(
        a, b, t([0.5, 2.0]), t([[1.0], [2.0], [0.1]]), torch.float32, torch.int8, t([0, 0, 1.0])
    )
    near(got, t([[25.0, -1.0, 381 * 0.05 + 1], [-100.0, -12.0, -127 * 0.2 + 1]]), atol=1e-5)


def test_linear_w8a8_static() -> None:
    # 1 / 0.5 + 1 = 3; 100 / 0.5 + 1 is beyond 127. (3 * 2 + 127 * 1 + 7) * 0.5.
    got = ops.linear_w8a8_static(
        t([[1.0, 100.0]]), t([[2, 1]], dtype=torch.int8), t([0.5]), t([1], dtype=torch.int8), t([0.5]), torch.float32,
        torch.int8, t([7], dtype=torch.int32),
    )  # fmt: skip
    near(got, t([[70.0]]))


def _nibbles(*values: int) -> int:
    """The int32 whose hexadecimal digits, from the low one, are these."""
    number = int("".join(f"{value & 15:x}" for value in reversed(values)), 16)
    return number - 2**32 if number >= 2**31 else number


def test_weight_quant_matmul_of_an_awq_checkpoint() -> None:
    # Elements 0 to 7 are 0 1 2 3 4 5 6 7; a checkpoint keeps them as 0 2 4 6 1 3 5 7. Zeros are all 1.
    weight = torch.tensor([[_nibbles(0, 2, 4, 6, 1, 3, 5, 7)]], dtype=torch.int32)
    zeros = torch.tensor([[0x11111111]], dtype=torch.int32)
    scale = torch.full((1, 8), 10.0)
    got = ops.weight_quant_matmul(t([[2.0]]), weight, scale, offset=zeros, group_size=1)
    near(got, t([[-20.0, 0.0, 20.0, 40.0, 60.0, 80.0, 100.0, 120.0]]))


def test_weight_quant_matmul_of_signed_elements() -> None:
    weight = torch.tensor([[_nibbles(0, 1, -1, 7, -8, 2, 3, 4)]] * 2, dtype=torch.int32)
    got = ops.weight_quant_matmul(t([[1.0, 1.0]]), weight, torch.ones(8))
    near(got, t([[0.0, 2.0, -2.0, 14.0, -16.0, 4.0, 6.0, 8.0]]))


def test_weight_quant_matmul_of_8_bits_in_groups() -> None:
    weight = t([[10], [20], [30], [-40]], dtype=torch.int8)
    got = ops.weight_quant_matmul(
        torch.ones(1, 4), weight, t([[1.0], [0.5]]), offset=t([[1.0], [0.0]]), bias=t([100.0]), group_size=2
    )
    near(got, t([[32.0 - 5.0 + 100.0]]))


# ---- experts ----


def test_moe_gating() -> None:
    logits = torch.log(t([[1.0, 4.0, 2.0, 1.0]]))
    weights, ids = ops.moe_gating_topk_softmax(logits, 2)
    near(weights, t([[0.5, 0.25]]))
    assert ids.tolist() == [[1, 2]]
    shares, _ = ops.moe_gating_topk_softmax(logits, 2, renormalize=True)
    near(shares, t([[2 / 3, 1 / 3]]))
    weights, ids = ops.moe_gating_topk_softmax(
        torch.log(t([[4.0, 3.0, 1.0, 2.0]])), 2, MoeMetadata(router_n_groups=2)
    )
    near(weights, t([[0.4, 0.2]]))
    assert ids.tolist() == [[0, 3]]


def _experts() -> tuple[Tensor, Tensor]:
    """Expert e turns a token x of (ln 3, y) into (e + 1) * silu(ln 3) * y."""
    gate_up = t([[1.0, 0.0], [0.0, 1.0]]).expand(2, 2, 2).contiguous()
    down = t([[[1.0], [0.0]], [[2.0], [0.0]]])
    return gate_up, down


def test_fused_moe() -> None:
    gate_up, down = _experts()
    tokens = t([[LN3, 4.0], [LN3, 8.0]])
    silu = LN3 * 0.75
    got = ops.fused_moe(
        tokens, gate_up, down, t([[0.5, 0.25], [1.0, 1.0]]), t([[0, 1], [1, 1]], dtype=torch.int64), 2, False
    )
    near(got, t([[silu * 4 * (0.5 + 0.25 * 2), 0.0], [silu * 8 * 4, 0.0]]), atol=1e-5)
    got = ops.fused_moe(
        tokens, gate_up, down, t([[0.5, 0.25], [1.0, 1.0]]), t([[0, 1], [1, 1]], dtype=torch.int64), 2, True
    )
    near(got, t([[silu * 4 * (2 / 3 + 1 / 3 * 2), 0.0], [silu * 8 * 2, 0.0]]), atol=1e-5)


def test_fused_moe_of_absent_experts_adds_nothing() -> None:
    gate_up, down = _experts()
    ids = t([[0, 3]], dtype=torch.int32)
    got = torch.ops.dlinfer.fused_moe(t([[LN3, 4.0]]), gate_up, down, t([[0.5, 1.0]]), ids, False, 2, 4)
    near(got, t([[LN3 * 0.75 * 4 * 2, 0.0]]), atol=1e-5)


def test_fused_moe_w8a8() -> None:
    # A token of (127, 127): quantised exactly with scale 1. gate = 127 * 2 * s, up = 127 * s with s = 1/127: 2 and 1.
    gate_up = t([[[1, 1], [1, 0]]], dtype=torch.int8)
    down = t([[[64], [-1]]], dtype=torch.int8)
    silu = 2 / (1 + E**-2)
    got = ops.fused_moe_w8a8(
        t([[127.0, 127.0]]), gate_up, t([[1 / 127, 1 / 127]]), down, t([[1.0, 3.0]]), t([[0.5]]), t([[0]], dtype=torch.int64),
        1, False,
    )  # fmt: skip
    near(got, t([[silu * 32, -silu * 1.5]]), atol=1e-4)
