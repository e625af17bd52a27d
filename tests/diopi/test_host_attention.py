"""The host's attention kernels: dropout that forward and backward agree on, values by hand, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fresh_process import fresh
from host_calls import run, values

from diopi.conformance.references.attention import Scoring, dense_attention, dense_attention_backward


def _drawn(*shape: int) -> torch.Tensor:
    seeded = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=seeded)


def _attention(p: float, seed: int | None = 5) -> dict[str, Any]:
    return {
        "q": _drawn(2, 6, 4, 8),
        "k": _drawn(2, 9, 2, 8),
        "v": _drawn(2, 9, 2, 8) + 1,
        "dropout_p": p,
        "is_causal": False,
        "return_debug_mask": True,
        "scale": 0.25,
        "gen": seed,
        "out": torch.empty(2, 6, 4, 8, dtype=torch.float64),
        "softmax_lse": torch.empty(2, 4, 6, dtype=torch.float64),
        "debug_attn_mask": torch.empty(2, 4, 6, 9, dtype=torch.bool),
    }


@fresh
def test_backward_drops_what_forward_dropped() -> None:
    given = _attention(0.25)
    made = values("diopiMultiHeadAttention", given)
    keep = made["debug_attn_mask"]
    assert 0.65 < keep.double().mean() < 0.85
    q, k, v, grad = given["q"], given["k"], given["v"], _drawn(2, 6, 4, 8)
    scoring = Scoring(0.25, dropout=0.25, keep=keep)
    out, lse = dense_attention(q, k, v, scoring)
    torch.testing.assert_close(made["out"], out)
    torch.testing.assert_close(made["softmax_lse"], lse)
    backward = {name: given[name] for name in ("q", "k", "v", "dropout_p", "is_causal", "scale", "gen")}
    backward |= {"grad_out": grad, "out": made["out"], "softmax_lse": made["softmax_lse"]}
    backward |= {f"grad_{name}": torch.empty_like(given[name]) for name in "qkv"}
    grads = values("diopiMultiHeadAttentionBackward", backward)
    expected = dense_attention_backward(grad, q, k, v, made["out"], scoring)
    for name, right in zip("qkv", expected, strict=True):
        torch.testing.assert_close(grads[f"grad_{name}"], right)


@fresh
def test_another_seed_drops_something_else_and_all_may_be_dropped() -> None:
    first, second = (values("diopiMultiHeadAttention", _attention(0.5, seed)) for seed in (1, 2))
    assert not torch.equal(first["debug_attn_mask"], second["debug_attn_mask"])
    assert torch.equal(first["softmax_lse"], second["softmax_lse"])
    everything = values("diopiMultiHeadAttention", _attention(1.0))
    assert everything["out"].abs().max() == 0
    assert not everything["debug_attn_mask"].any()


@fresh
def test_a_row_is_copied_and_the_others_stay() -> None:
    arguments = {
        "out": torch.arange(6.0).view(3, 2),
        "k": torch.tensor([[10.0, 11.0]]),
        "dest_loc": torch.tensor([1]),
    }
    assert values("diopiDestIndexCopyKV", arguments)["out"].tolist() == [[0, 1], [10, 11], [4, 5]]


def _flash(heads: int, key_heads: int) -> dict[str, Any]:
    return {
        "attention_out": torch.empty(1, 3, heads, 4),
        "q": torch.zeros(1, 3, heads, 4),
        "k": torch.zeros(1, 3, key_heads, 4),
        "v": torch.zeros(1, 3, key_heads, 4),
        "p_dropout": 0.0,
        "softmax_scale": 1.0,
        "is_causal": False,
        "window_size_left": -1,
        "window_size_right": -1,
    }


def _paged(block: int, length: int) -> dict[str, Any]:
    return {
        "out": torch.empty(1, 4),
        "q": torch.zeros(1, 4),
        "k": torch.zeros(4, 4),
        "v": torch.zeros(4, 4),
        "actual_seq_lengths": [length],
        "num_heads": 1,
        "num_kv_heads": 1,
        "dim": 4,
        "block_table": torch.tensor([[block]]),
        "block_size": 2,
    }


def _packed(ends: list[int]) -> dict[str, Any]:
    sequences = {"cum_seq_q": torch.tensor(ends), "cum_seq_kv": torch.tensor(ends)}
    lengths = {"max_seqlen_q": 2**31 - 1, "max_seqlen_kv": 2**31 - 1}
    tensors = {name: tensor[0] for name, tensor in _flash(1, 1).items() if isinstance(tensor, torch.Tensor)}
    return _flash(1, 1) | tensors | sequences | lengths


@fresh
@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        ("diopiFlashAttention", _flash(0, 0), "cannot share 0 key heads"),
        ("diopiFlashAttention", _flash(3, 2), "3 query heads cannot share 2"),
        ("diopiFlashAttention", _flash(2, 2) | {"p_dropout": 0.5}, "needs a generator"),
        ("diopiFlashAttention", _flash(2, 2) | {"p_dropout": 1.5, "gen": 1}, "between 0 and 1"),
        ("diopiFlashAttentionVarLen", _packed([0, 5, 3]), "must rise"),
        ("diopiFlashAttentionVarLen", _packed([1, 3]), "begin with 0"),
        ("diopiPagedAttention", _paged(2, 2), "block_table holds 2"),
        ("diopiPagedAttention", _paged(0, 3), "does not fit into 1 blocks"),
        (
            "diopiDestIndexCopyKV",
            {"out": torch.zeros(3, 2), "k": torch.zeros(1, 2), "dest_loc": torch.tensor([3])},
            "dest_loc holds 3",
        ),
    ],
)
def test_hostile_arguments_are_refused(function: str, arguments: dict[str, Any], said: str) -> None:
    ran = run(function, arguments)
    assert not ran.ok
    assert said in ran.error
    assert not ran.faults
