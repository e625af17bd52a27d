"""Both generations of LMDeploy's calls give the same results, and say the same with other words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dlinfer import ops
from dlinfer.ops.cache import cache_layout, set_cache_layout

pytestmark = pytest.mark.unit

HEADS, KV_HEADS, SIZE, BLOCK = 4, 2, 8, 4
LENGTHS = ([3, 1, 6], [9, 1, 13])  # new tokens, keys


def ints(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.fixture
def states() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens = sum(LENGTHS[0])
    found = {"query": torch.randn(tokens, HEADS, SIZE, generator=generator)}
    for name in ("key", "value"):
        found[name] = torch.randn(tokens, KV_HEADS, SIZE, generator=generator)
        found[f"{name}_cache"] = torch.randn(16, BLOCK, KV_HEADS, SIZE, generator=generator)
    found["table"] = torch.randperm(16, generator=generator)[:12].view(3, 4).int()
    return found


def causal_masks(new: list[int], keys: list[int], columns: int) -> list[Tensor]:
    """As 0.16 builds them: true hides."""
    return [~torch.ones(n, columns).tril(k - n).bool() for n, k in zip(new, keys, strict=True)]


TEMPLATE = torch.triu(torch.ones(32, 32, dtype=torch.int8), 1)


def prefill_0_18(s: dict[str, Tensor], **changes: Any) -> Tensor:
    new = ints(LENGTHS[0])
    given = {"softmax_scale": 0.3, "actual_seq_lengths_cpu": new.cumsum(0), **changes}
    mask = given.pop("attn_mask", [TEMPLATE])
    return ops.prefill_attention(
        s["query"], s["key"], s["value"], s["key_cache"], s["value_cache"], new, new, max(LENGTHS[0]), HEADS, KV_HEADS,
        mask, **given,
    )  # fmt: skip


def prefill_0_16(s: dict[str, Tensor], starts: list[int], mask: Any, **changes: Any) -> Tensor:
    new = ints(LENGTHS[0])
    return ops.prefill_attention(
        s["query"], s["key"], s["value"], s["key_cache"], s["value_cache"], ints(starts), new, new, max(LENGTHS[0]),
        HEADS, KV_HEADS, mask, 0.3, **changes,
    )  # fmt: skip


@pytest.mark.parametrize("starts", [[0, 3, 4], [0, 3, 4, 10]], ids=["starts", "starts and end"])
def test_prefill_attention(states: dict[str, Tensor], starts: list[int]) -> None:
    wanted = prefill_0_18(states)
    square = [torch.triu(torch.ones(6, 6, dtype=torch.bool), 1)]
    each = causal_masks(LENGTHS[0], LENGTHS[0], 6)
    for mask in (square, each, [torch.cat(each)], [torch.where(torch.cat(each), -torch.inf, 0.0)], [], None):
        torch.testing.assert_close(prefill_0_16(states, starts, mask), wanted)


def test_prefill_attention_without_lengths_on_the_cpu(states: dict[str, Tensor]) -> None:
    assert torch.equal(prefill_0_18(states, actual_seq_lengths_cpu=None), prefill_0_18(states))


def test_the_old_form_by_names(states: dict[str, Tensor]) -> None:
    new = ints(LENGTHS[0])
    got = ops.prefill_attention(
        query=states["query"], key=states["key"], value=states["value"], key_cache=states["key_cache"],
        value_cache=states["value_cache"], q_start_loc=ints([0, 3, 4]), q_seq_len=new, kv_seq_len=new, max_q_seq_len=6,
        num_q_heads=HEADS, num_kv_heads=KV_HEADS, attn_mask=[], softmax_scale=0.3,
    )  # fmt: skip
    assert torch.equal(got, prefill_0_18(states))


def test_output_goes_where_the_caller_says(states: dict[str, Tensor]) -> None:
    wanted = prefill_0_18(states)
    output = torch.empty_like(wanted)
    assert prefill_0_18(states, attn_output=output) is output and torch.equal(output, wanted)
    query = states["query"]
    assert prefill_0_18(states, attn_output=query) is query and torch.equal(query, wanted)


def paged_0_18(s: dict[str, Tensor], **changes: Any) -> Tensor:
    return ops.paged_prefill_attention(
        s["query"], s["key"], s["value"], s["key_cache"], s["value_cache"], s["table"], BLOCK, ints(LENGTHS[0]).cumsum(0),
        ints(LENGTHS[1]), 6, 13, HEADS, KV_HEADS, [TEMPLATE], head_size_v=SIZE, softmax_scale=0.3, attn_output=None,
        kv_scales=None, kv_zeros=None, quant_bits=0, **changes,
    )  # fmt: skip


def paged_0_16(s: dict[str, Tensor], mask: Any, cumulative: Tensor | None = None) -> Tensor:
    return ops.paged_prefill_attention(
        s["query"], s["key"], s["value"], s["key_cache"], s["value_cache"], s["table"], BLOCK, ints([0, 3, 4, 10]),
        ints(LENGTHS[0]), ints(LENGTHS[1]), cumulative, 6, 13, HEADS, KV_HEADS, mask, SIZE, 0.3,
    )  # fmt: skip


def test_paged_prefill_attention(states: dict[str, Tensor]) -> None:
    wanted = paged_0_18(states)
    each = causal_masks(*LENGTHS, 16)
    for mask in (each, [torch.cat(each)], [torch.cat(each).to(torch.int8)], [], None):
        torch.testing.assert_close(paged_0_16(states, mask), wanted)
    assert torch.equal(paged_0_16(states, [], ints([0, 9, 10, 23])), wanted)


def test_paged_and_fresh_keys_agree(states: dict[str, Tensor]) -> None:
    """What was filled into a cache is what attention finds there."""
    new = ints(LENGTHS[0])
    slots = torch.cat([states["table"][row].long() * BLOCK for row in range(3)]).view(3, 4, 1) + torch.arange(
        BLOCK
    )
    slots = torch.cat([slots[row].flatten()[:length] for row, length in enumerate(LENGTHS[0])])
    ops.fill_kv_cache(
        states["key"], states["value"], states["key_cache"], states["value_cache"], slots.unsqueeze(1)
    )
    got = ops.paged_prefill_attention(
        states["query"], None, None, states["key_cache"], states["value_cache"], states["table"], BLOCK, new.cumsum(0),
        new, 6, 6, HEADS, KV_HEADS, [TEMPLATE], softmax_scale=0.3,
    )  # fmt: skip
    torch.testing.assert_close(got, prefill_0_18(states))


def decode(s: dict[str, Tensor], q_seq_len: Tensor | None, **changes: Any) -> Tensor:
    rows = 3 if q_seq_len is None or "new" not in changes else 3 * changes.pop("new")
    # The newest tokens are in the cache already.
    lengths = ints([max(length, rows // 3) for length in LENGTHS[1]])
    return ops.paged_decode_attention(
        s["query"][:rows], s["key_cache"], s["value_cache"], s["table"], BLOCK, q_seq_len, lengths, 13, HEADS,
        KV_HEADS, head_size_v=SIZE, **changes,
    )  # fmt: skip


def test_decode_attention(states: dict[str, Tensor]) -> None:
    wanted = decode(states, None)
    assert torch.equal(decode(states, ints([1, 1, 1])), wanted), "0.16: lengths"
    assert torch.equal(decode(states, ints([1, 2, 3])), wanted), "0.18: cumulative lengths"
    several = decode(states, ints([2, 2, 2]), new=2)
    assert torch.equal(decode(states, ints([2, 4, 6]), new=2), several)


def test_decode_is_prefill_of_one_token(states: dict[str, Tensor]) -> None:
    query = states["query"][:3]
    got = ops.paged_prefill_attention(
        query, None, None, states["key_cache"], states["value_cache"], states["table"], BLOCK, ints([1, 2, 3]),
        ints(LENGTHS[1]), 1, 13, HEADS, KV_HEADS, [],
    )  # fmt: skip
    torch.testing.assert_close(got, decode(states, None))


def test_a_batch_dimension_of_one_is_kept(states: dict[str, Tensor]) -> None:
    wanted = prefill_0_18(states)
    four = {
        name: value.unsqueeze(0) if name in ("query", "key", "value") else value
        for name, value in states.items()
    }
    got = prefill_0_18(four)
    assert got.shape == (1, 10, HEADS, SIZE) and torch.equal(got[0], wanted)


def test_caches_with_heads_before_places(states: dict[str, Tensor]) -> None:
    wanted = decode(states, None)
    turned = {**states}
    for name in ("key_cache", "value_cache"):
        turned[name] = states[name].transpose(1, 2).contiguous()
    try:
        set_cache_layout("BNSD")
        assert torch.equal(decode(turned, None), wanted)
        ops.fill_kv_cache(
            states["key"][:1], states["value"][:1], turned["key_cache"], turned["value_cache"], ints([5])
        )
    finally:
        set_cache_layout("BSND")
    assert torch.equal(turned["key_cache"][1, :, 1], states["key"][0])


def test_one_cache_given_twice_is_filled_once(states: dict[str, Tensor]) -> None:
    cache, key = states["key_cache"], states["key"]
    ops.fill_kv_cache(key, key, cache, cache, torch.arange(10, dtype=torch.int32), (), (), 0)
    assert torch.equal(cache.flatten(0, 1)[:10], key)


def test_rotary_in_place_and_into_given_tensors() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 5, heads, SIZE, generator=generator) for heads in (HEADS, KV_HEADS))
    cos, sin = (torch.randn(1, 5, 1, SIZE, generator=generator) for _ in range(2))
    wanted = ops.apply_rotary_pos_emb(query, key, cos, sin)
    outputs = torch.empty_like(query), torch.empty_like(key)
    got = ops.apply_rotary_pos_emb(query, key, cos, sin, *outputs)
    assert got[0] is outputs[0] and torch.equal(outputs[1], wanted[1])
    ops.apply_rotary_pos_emb(query, key, cos, sin, None, None)
    assert torch.equal(query, wanted[0]) and torch.equal(key, wanted[1])


def test_fused_moe_with_and_without_metadata() -> None:
    from dlinfer.utils.type_annotation import MoeMetadata

    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, 5, 8, generator=generator)
    gate_up, down = torch.randn(4, 12, 8, generator=generator), torch.randn(4, 8, 6, generator=generator)
    weights, ids = ops.moe_gating_topk_softmax(torch.randn(5, 4, generator=generator), 2)
    old = ops.fused_moe(hidden, gate_up, down, weights, ids, 2, True, MoeMetadata())
    new = ops.fused_moe(hidden, gate_up, down, weights, ids.int(), 2, True, None, None)
    assert old.shape == hidden.shape and torch.equal(old, new)
    parts = [
        torch.ops.dlinfer.fused_moe(hidden[0], gate_up[n : n + 2], down[n : n + 2], weights, ids, True, n, 4)
        for n in (0, 2)
    ]
    torch.testing.assert_close(parts[0] + parts[1], old[0])


def test_a_layout_of_caches_holds_for_a_while() -> None:
    query, lengths = torch.randn(2, 2, 4), torch.tensor([3, 2])
    keys, values = torch.randn(2, 2, 2, 2, 4).unbind()
    table = torch.tensor([[0, 1], [1, 0]])
    given = (query, keys, values, table, 2, None, lengths, 3, 2, 2)
    turned = (query, keys.transpose(1, 2), values.transpose(1, 2), *given[3:])
    before = ops.paged_decode_attention(*given)
    with cache_layout("BNSD"):
        assert torch.equal(ops.paged_decode_attention(*turned), before)
        assert not torch.allclose(ops.paged_decode_attention(*given), before)
    assert torch.equal(ops.paged_decode_attention(*given), before)
