"""Samples of the customized attention functions: layouts by name, masks, saved maxima and sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from diopi.conformance.references.attention import (
    Scoring,
    customized_attention,
    customized_packed_attention,
)
from diopi.conformance.samples import Maker, Sample, samples
from diopi.conformance.samples.attention import PACKED, packed_operands


def _in_layout(make: Maker, layout: str, length: int, heads: int, width: int) -> torch.Tensor:
    """A batch of two."""
    match layout:
        case "BSND":
            return make(2, length, heads, width)
        case "BNSD":
            return make(2, heads, length, width)
        case "BSH":
            return make(2, length, heads * width)
    return make(length, 2, heads * width)


def _mask(make: Maker, *shape: int) -> torch.Tensor:
    """True hides; the first key is always seen."""
    hidden = make.mask(*shape, rate=0.3).clone()
    hidden[..., 0] = False
    return make.laid_out(hidden, written=True)


def _customized(make: Maker) -> Iterator[tuple[Sample, Scoring, int, str]]:
    for number, (layout, kind) in enumerate(
        (("BSND", "none"), ("BNSD", "shared"), ("BSH", "each"), ("SBH", "causal"), ("BSH", "window"))
    ):
        heads, key_heads = (4, 2) if number % 2 else (3, 3)
        queries, keys = (6, 6) if kind == "causal" else (5, 9)
        given = {
            "q": _in_layout(make, layout, queries, heads, 8),
            "k": _in_layout(make, layout, keys, key_heads, 8),
            "v": _in_layout(make, layout, keys, key_heads, 8),
        }
        mask = {
            "shared": lambda: _mask(make, 5, 9),
            "each": lambda: _mask(make, 2, 1, 5, 9),
            "causal": lambda: torch.ones(6, 6, dtype=torch.bool).triu(1),
        }.get(kind, lambda: None)()
        left, right = (3, 2) if kind == "window" else (-1, -1)
        scoring = Scoring(0.25, kind == "causal", left, right, mask=mask)
        yield given, scoring, heads, layout


def _customized_arguments(scoring: Scoring) -> Sample:
    return {
        "alibi_slopes": scoring.slopes,
        "attention_mask": scoring.mask,
        "p_dropout": scoring.dropout,
        "softmax_scale": scoring.scale,
        "is_causal": scoring.causal,
        "window_size_left": scoring.left,
        "window_size_right": scoring.right,
    }


@samples("diopiCustomizedFlashAttention")
def customized(make: Maker) -> Iterator[Sample]:
    for given, scoring, heads, layout in _customized(make):
        yield {**given, **_customized_arguments(scoring), "head_num": heads, "input_layout": layout}
    given = {"q": make(2, 5, 3, 8), "k": make(2, 5, 3, 8), "v": make(2, 5, 3, 8)}
    dropped = {**_customized_arguments(Scoring(0.5)), "p_dropout": 0.5, "gen": make.seed()}
    yield {**given, **dropped, "head_num": 3, "input_layout": "BSND", "attention_out": make.out(2, 5, 3, 8)}


@samples("diopiCustomizedFlashAttentionBackward")
def customized_backward(make: Maker) -> Iterator[Sample]:
    for number, (given, scoring, heads, layout) in enumerate(_customized(make)):
        upcast = [given[name].double() for name in "qkv"]
        keep = make.mask(2, heads, 5, 9, rate=0.5) if number == 0 else None
        used = scoring if keep is None else Scoring(0.25, dropout=0.5, keep=keep)
        out, _, largest, total, _ = customized_attention(upcast[0], upcast[1], upcast[2], used, heads, layout)
        yield {
            **given,
            **_customized_arguments(used),
            **_saved_rows(make, given["q"], out, largest, total),
            "grad_output": make(*given["q"].shape),
            "dropout_mask": keep,
            "head_num": heads,
            "input_layout": layout,
        }


def _saved_rows(make: Maker, q: torch.Tensor, out: Any, largest: Any, total: Any) -> Sample:
    kind = torch.promote_types(q.dtype, torch.float32)
    return {
        "attention_out": make.laid_out(out.to(q.dtype), written=True),
        "softmax_max": make.laid_out(largest.to(kind), written=True),
        "softmax_sum": make.laid_out(total.to(kind), written=True),
    }


def _customized_packed(make: Maker) -> Iterator[tuple[Sample, Scoring]]:
    for number, case in enumerate(PACKED):
        longest_q, longest_k = max(case[0]), max(case[1])
        mask = _mask(make, longest_q, longest_k) if number in (1, 2) else None
        scoring = Scoring(0.25, causal=number == 0, mask=mask)
        leading = (0,) if number == 3 else ()
        yield (
            {
                **packed_operands(make, case),
                **_customized_arguments(scoring),
                "cum_seq_q": torch.cumsum(torch.tensor((*leading, *case[0])), 0).tolist(),
                "cum_seq_kv": torch.cumsum(torch.tensor((*leading, *case[1])), 0).tolist(),
                "max_seqlen_q": longest_q,
                "max_seqlen_kv": longest_k,
            },
            scoring,
        )


@samples("diopiCustomizedFlashAttentionVarLen")
def customized_packed(make: Maker) -> Iterator[Sample]:
    for given, _ in _customized_packed(make):
        yield given


@samples("diopiCustomizedFlashAttentionVarLenBackward")
def customized_packed_backward(make: Maker) -> Iterator[Sample]:
    for given, scoring in _customized_packed(make):
        upcast = [given[name].double() for name in "qkv"]
        out, _, largest, total, _ = customized_packed_attention(
            upcast[0], upcast[1], upcast[2], given["cum_seq_q"], given["cum_seq_kv"], scoring
        )
        yield {
            **given,
            **_saved_rows(make, given["q"], out, largest, total),
            "grad_output": make(*given["q"].shape),
        }
