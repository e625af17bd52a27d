"""Calls that once gave a silent wrong result or an error without a name, beside calls like them that are right."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from dlinfer import ops
from dlinfer.errors import DlinferArgumentError
from dlinfer.vendors import using

pytestmark = pytest.mark.unit

BOOL, I32 = torch.bool, torch.int32


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=I32)


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def causal(size: int) -> Tensor:
    return torch.ones(size, size, dtype=BOOL).triu(1)


def prefill(**changes: Any) -> Tensor:
    given: dict[str, Any] = {
        "query": noise(4, 2, 8), "key": noise(4, 2, 8), "value": noise(4, 2, 8), "key_cache": None, "value_cache": None,
        "q_seqlens": ints(3, 1), "kv_seqlens": ints(3, 1), "max_q_seq_len": 3, "num_q_heads": 2, "num_kv_heads": 2,
        "attn_mask": [],
    }  # fmt: skip
    return ops.prefill_attention(**{**given, **changes})


def prefill_old(mask: Tensor, lengths: list[int], **changes: Any) -> Tensor:
    tokens = sum(lengths)
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    given: dict[str, Any] = {
        "query": noise(tokens, 2, 8), "key": noise(tokens, 2, 8), "value": noise(tokens, 2, 8), "key_cache": None,
        "value_cache": None, "q_start_loc": ints(*starts), "q_seq_len": ints(*lengths), "kv_seq_len": ints(*lengths),
        "max_q_seq_len": 4, "num_q_heads": 2, "num_kv_heads": 2, "attn_mask": [mask],
    }  # fmt: skip
    return ops.prefill_attention(**{**given, **changes})


def decode(**changes: Any) -> Tensor:
    given: dict[str, Any] = {
        "query": noise(2, 2, 8), "key_cache": noise(4, 4, 2, 8), "value_cache": noise(4, 4, 2, 8),
        "block_table": torch.tensor([[0], [1]], dtype=I32), "block_size": 4, "q_seq_len": None,
        "kv_seq_len": ints(3, 2), "max_kv_seq_len": 0, "num_q_heads": 2, "num_kv_heads": 2,
    }  # fmt: skip
    return ops.paged_decode_attention(**{**given, **changes})


def fill(**changes: Any) -> Any:
    given: dict[str, Any] = {
        "key": noise(2, 2, 8), "value": noise(2, 2, 8) + 1, "key_cache": torch.zeros(4, 4, 2, 8),
        "value_cache": torch.zeros(4, 4, 2, 8), "kv_indices": ints(0, 1),
    }  # fmt: skip
    return ops.fill_kv_cache(**{**given, **changes})


def fused(mask: Tensor) -> Tensor:
    states = noise(1, 3, 2, 8)
    return torch.ops.dlinfer.fused_attention(states, states, states, mask)


def one_place() -> Any:
    cache = torch.zeros(4, 4, 2, 8)
    return fill(key_cache=cache, value_cache=cache[:])


def spoiled(row: int, column: int) -> Tensor:
    mask = causal(6)
    mask[row, column] = not mask[row, column]
    return mask


def packed(**changes: Any) -> Tensor:
    given: dict[str, Any] = {
        "x1": noise(2, 8), "x2": torch.ones(8, 4, dtype=torch.int8), "scale": torch.ones(2, 4), "offset": None,
        "bias": None, "group_size": 4,
    }  # fmt: skip
    return ops.weight_quant_matmul(**{**given, **changes})


def w8a8(bias: Tensor) -> Tensor:
    one = torch.ones(4, 4, dtype=torch.int8)
    return ops.linear_w8a8(one, one, torch.ones(4), torch.ones(4), torch.float32, torch.int8, bias)


def increment(size: int) -> Tensor:
    query = torch.ones(1, 1, 2 * size)
    return ops.incre_flash_attention(query, query, query, 2)


META: dict[str, Any] = {"device": "meta"}
CASES: list[tuple[str, Callable[[], Any]]] = [
    # lengths that disagree
    ("q_seqlens", lambda: prefill(actual_seq_lengths_cpu=ints(2, 4))),
    ("kv_lengths", lambda: decode(query=noise(4, 2, 8), kv_seq_len=ints(3, 1))),
    # templates that are not causal, seen at their edges
    ("attn_mask", lambda: prefill(attn_mask=[spoiled(0, 4)])),
    ("attn_mask", lambda: prefill(attn_mask=[spoiled(3, 5)])),
    ("attn_mask", lambda: prefill(attn_mask=[spoiled(5, 3)])),
    ("attn_mask", lambda: prefill(attn_mask=[spoiled(3, 0)])),
    ("attn_mask", lambda: prefill(attn_mask=[spoiled(5, 5).to(torch.int8)])),
    # a stray meta tensor
    ("kv_lengths", lambda: decode(kv_seq_len=torch.ones(2, dtype=I32, **META))),
    ("block_table", lambda: decode(block_table=torch.ones(2, 1, dtype=I32, **META))),
    ("mask", lambda: fused(torch.ones(1, 3, 3, dtype=BOOL, **META))),
    ("weight", lambda: ops.rms_norm(noise(2, 8), torch.ones(8, **META), 1e-6)),
    ("attn_output", lambda: decode(**{
        name: noise(*shape).to("meta")
        for name, shape in (("query", (2, 2, 8)), ("key_cache", (4, 4, 2, 8)), ("value_cache", (4, 4, 2, 8)))
    }, attn_output=noise(2, 2, 8))),
    # quantised products
    ("offset", lambda: packed(offset=torch.ones(4, 2))),
    ("scale", lambda: packed(x2=torch.ones(8, 1, dtype=torch.int8), scale=torch.tensor(1.0), group_size=0)),
    ("bias", lambda: packed(bias=torch.ones(4, dtype=torch.complex64))),
    ("bias", lambda: w8a8(torch.ones(4, dtype=torch.complex64))),
    # masks
    ("mask", lambda: fused(torch.ones(1, 3, 3, dtype=torch.complex64))),
    ("mask", lambda: fused(torch.ones(1, 3, 3, dtype=I32))),
    # memory that would be written twice
    ("value_cache", one_place),
    ("attn_output", lambda: decode(attn_output=torch.zeros(1, 2, 8).expand(2, 2, 8))),
    ("attn_output", lambda: prefill(attn_output=torch.zeros(4, 1, 8).expand(4, 2, 8))),
    # what has another type
    ("window_size", lambda: decode(window_size=2.0)),
    ("window_size", lambda: decode(window_size=(2,))),
    ("window_size", lambda: prefill(window_size="2")),
    ("q_seqlens", lambda: prefill(q_seqlens=None)),
    ("q_seq_len", lambda: prefill_old(causal(4), [2, 2], q_seq_len=None)),
    ("kv_seq_len", lambda: prefill_old(causal(4), [2, 2], kv_seq_len=None)),
    ("value", lambda: fill(value=None)),
    ("value_cache", lambda: fill(value_cache=None)),
    ("quant_bits", lambda: fill(quant_bits="x")),
    ("quant_bits", lambda: decode(quant_bits="x")),
    ("query", lambda: increment(0)),
    ("soft_cap", lambda: decode(logit_softcapping=inf)),
    ("soft_cap", lambda: prefill(logit_softcapping=inf)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("argument", "call"), CASES, ids=[f"{i}-{argument}" for i, (argument, _) in enumerate(CASES)]
)
def test_it_is_refused_by_name(argument: str, call: Callable[[], Any]) -> None:
    # The cpp vendor looks at values itself, and has tests of its own.
    with using("ref"), pytest.raises(DlinferArgumentError) as caught:
        call()
    assert caught.value.argument == argument, caught.value


def test_lengths_beside_ends_may_be_the_ends_as_well() -> None:
    wanted = prefill()
    for lengths in (ints(3, 1), ints(3, 4), None):
        assert torch.equal(prefill(q_seqlens=lengths, actual_seq_lengths_cpu=ints(3, 4)), wanted)


def test_a_template_is_looked_at_again_after_a_change() -> None:
    mask = causal(6)
    prefill(attn_mask=[mask])
    prefill(attn_mask=[mask])
    mask[0, 4] = False
    with pytest.raises(DlinferArgumentError, match="not a causal template"):
        prefill(attn_mask=[mask])
    with torch.inference_mode():
        prefill(attn_mask=[causal(6)])


def test_one_square_mask_keeps_its_meaning_whatever_the_number_of_tokens() -> None:
    wanted = prefill_old(causal(5), [2, 2])
    assert torch.equal(prefill_old(causal(4), [2, 2]), wanted)
    assert torch.equal(prefill_old(causal(2).repeat(2, 1), [2, 2]), wanted)


def test_a_square_mask_as_wide_as_the_keys_has_a_row_for_each_token() -> None:
    mask = torch.zeros(4, 4, dtype=BOOL)
    mask[2, 1:] = True
    states = {"key": noise(8, 2, 8), "value": noise(8, 2, 8), "kv_seq_len": ints(4, 4)}
    found = prefill_old(mask, [2, 2], **states)
    torch.testing.assert_close(found[2], states["value"][4])


def test_padding_has_no_keys_in_speculative_decoding() -> None:
    found = decode(query=noise(4, 2, 8), kv_seq_len=ints(3, 0))
    assert found[:2].any() and not found[2:].any()


def test_values_that_are_the_keys_may_lie_in_their_cache() -> None:
    cache, key = torch.zeros(4, 4, 2, 8), noise(2, 2, 8)
    fill(key=key, value=key[..., :6], key_cache=cache, value_cache=cache[..., :6])
    assert torch.equal(cache[0, :2], key)


def test_meta_calls_and_fake_calls_are_as_they_were() -> None:
    states = {"query": noise(2, 2, 8), "key_cache": noise(4, 4, 2, 8), "value_cache": noise(4, 4, 2, 8)}
    found = decode(**{name: value.to("meta") for name, value in states.items()})
    assert found.is_meta and found.shape == (2, 2, 8)  # beside lengths and a table on the CPU
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = {name: mode.from_tensor(value) for name, value in states.items()}
        assert decode(**fakes).shape == (2, 2, 8)


def test_packed_offsets_and_window_pairs_that_are_right() -> None:
    torch.testing.assert_close(packed(offset=torch.zeros(2, 4)), packed())
    assert torch.equal(decode(window_size=2), decode(window_size=[1, 1]))
