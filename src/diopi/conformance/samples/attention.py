"""Samples of attention: dense, packed, customized; forward and backward.

Scales are powers of two, exact as `float` and as `double`. Backward samples save what the forward gives: the output rounded
to the dtype, the logarithms in float32 (float64 for float64).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from diopi.conformance.references.attention import Scoring, dense_attention, packed_attention
from diopi.conformance.samples import Maker, Sample, samples

# batch, queries, keys, heads, key heads, width
_DENSE = [
    (2, 7, 7, 4, 4, 8),
    (1, 5, 9, 4, 2, 16),
    (2, 3, 11, 6, 1, 5),
    (3, 1, 37, 2, 2, 12),
    (1, 33, 40, 2, 1, 20),
]
# lengths of query sequences, of key sequences, heads, key heads, width
PACKED = [
    ((3, 5, 2), (3, 5, 2), 4, 4, 8),
    ((4, 1, 6), (7, 9, 6), 4, 2, 16),
    ((1, 0, 3), (5, 2, 3), 3, 1, 5),
    ((9, 34), (9, 35), 2, 2, 12),
]


def _operands(make: Maker, shape: tuple[int, ...]) -> Sample:
    batch, queries, keys, heads, key_heads, width = shape
    return {
        "q": make(batch, queries, heads, width),
        "k": make(batch, keys, key_heads, width),
        "v": make(batch, keys, key_heads, width),
    }


def _cumulative(make: Maker, lengths: tuple[int, ...], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    ends = torch.cumsum(torch.tensor((0, *lengths)), 0).to(dtype)
    return make.laid_out(ends, written=True)  # not expanded: that would change them


def _slopes(make: Maker, *shape: int) -> torch.Tensor:
    """ALiBi's usual ones are powers of two below 1, in float32."""
    return make(*shape, low=0.0625, high=0.5, dtype=torch.float32)


def _saved(given: Sample, scoring: Scoring) -> tuple[torch.Tensor, torch.Tensor]:
    """What a dense forward would have saved: computed in float64, rounded."""
    out, lse = dense_attention(given["q"].double(), given["k"].double(), given["v"].double(), scoring)
    return _rounded(given["q"], out, lse)


def _rounded(q: torch.Tensor, out: Any, lse: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return out.to(q.dtype), lse.to(torch.promote_types(q.dtype, torch.float32))


# ---- the older functions ----


@samples("diopiMultiHeadAttention")
def multi_head(make: Maker) -> Iterator[Sample]:
    for number, shape in enumerate(_DENSE):
        batch, queries, keys, heads, _, _ = shape
        debug = number % 2 == 0
        sample = {
            **_operands(make, shape),
            "dropout_p": 0.0,
            "is_causal": number in (0, 1, 4),
            "return_debug_mask": debug,
            "scale": 0.25,
        }
        if debug:
            sample["debug_attn_mask"] = make.out(batch, heads, queries, keys, dtype=torch.bool)
        yield sample
    shape = (2, 6, 4, 2, 2, 8)  # the first two queries see nothing
    yield {
        **_operands(make, shape),
        "dropout_p": 0.0,
        "is_causal": True,
        "return_debug_mask": False,
        "scale": 0.5,
        "softmax_lse": make.out(2, 2, 6, dtype=torch.float32),
    }
    yield {
        **_operands(make, _DENSE[0]),
        "dropout_p": 0.5,
        "is_causal": False,
        "return_debug_mask": False,
        "scale": 0.5,
        "gen": make.seed(),
        "out": make.out(2, 7, 4, 8),
    }


@samples("diopiMultiHeadAttentionBackward")
def multi_head_backward(make: Maker) -> Iterator[Sample]:
    for number, shape in enumerate(_DENSE):
        given = _operands(make, shape)
        scoring = Scoring(0.25, causal=number in (0, 1, 4))
        out, lse = _saved(given, scoring)
        yield {
            **given,
            "grad_out": make(*given["q"].shape),
            "out": make.laid_out(out, written=True),
            "softmax_lse": make.laid_out(lse, written=True),
            "dropout_p": 0.0,
            "is_causal": scoring.causal,
            "scale": scoring.scale,
        }


def packed_operands(make: Maker, case: tuple[Any, ...]) -> Sample:
    """q, k and v of packed sequences. Keys are never expanded: equal keys would leave nothing but rounding of the gradients."""
    lengths_q, lengths_k, heads, key_heads, width = case
    return {
        "q": make(sum(lengths_q), heads, width),
        "k": make(sum(lengths_k), key_heads, width, written=True),
        "v": make(sum(lengths_k), key_heads, width, written=True),
    }


def _packed_saved(
    given: Sample, case: tuple[Any, ...], scoring: Scoring
) -> tuple[torch.Tensor, torch.Tensor]:
    lengths_q, lengths_k = case[:2]
    ends_q, ends_k = (torch.cumsum(torch.tensor((0, *n)), 0) for n in (lengths_q, lengths_k))
    upcast = [given[name].double() for name in "qkv"]
    out, lse = packed_attention(upcast[0], upcast[1], upcast[2], ends_q, ends_k, max(lengths_q), scoring)
    return _rounded(given["q"], out, lse)


@samples("diopiMultiHeadAttentionVarLen")
def multi_head_packed(make: Maker) -> Iterator[Sample]:
    for number, case in enumerate(PACKED):
        lengths_q, lengths_k, heads, _, _ = case
        kind = torch.int64 if number % 2 else torch.int32
        debug = number % 2 == 0
        sample = {
            **packed_operands(make, case),
            "cum_seq_q": _cumulative(make, lengths_q, kind),
            "cum_seq_k": _cumulative(make, lengths_k, kind),
            "max_q": max(lengths_q),
            "max_k": max(lengths_k),
            "dropout_p": 0.0,
            "is_causal": number != 1,
            "return_debug_mask": debug,
            "scale": 0.25,
        }
        if debug:
            shape = (len(lengths_q), heads, max(lengths_q), max(lengths_k))
            sample["debug_attn_mask"] = make.out(*shape, dtype=torch.bool)
        yield sample
    lengths = PACKED[0][0]
    yield {
        **packed_operands(make, PACKED[0]),
        "cum_seq_q": _cumulative(make, lengths),
        "cum_seq_k": _cumulative(make, lengths),
        "max_q": max(lengths),
        "max_k": max(lengths),
        "dropout_p": 0.25,
        "is_causal": True,
        "return_debug_mask": False,
        "scale": 0.5,
        "gen": make.seed(),
        "out": make.out(sum(lengths), 4, 8),
    }


@samples("diopiMultiHeadAttentionVarLenBackward")
def multi_head_packed_backward(make: Maker) -> Iterator[Sample]:
    for number, case in enumerate(PACKED):
        given = packed_operands(make, case)
        scoring = Scoring(0.25, causal=number != 1)
        out, lse = _packed_saved(given, case, scoring)
        yield {
            **given,
            "grad_out": make(*given["q"].shape),
            "out": make.laid_out(out, written=True),
            "softmax_lse": make.laid_out(lse, written=True),
            "cum_seq_q": _cumulative(make, case[0]),
            "cum_seq_k": _cumulative(make, case[1]),
            "max_q": max(case[0]),
            "max_k": max(case[1]),
            "dropout_p": 0.0,
            "is_causal": scoring.causal,
            "scale": scoring.scale,
        }


# ---- flash attention ----

# causal, left, right, how many dimensions the slopes have
_MASKS = [
    (False, -1, -1, 0),
    (True, -1, -1, 0),
    (False, 2, 3, 0),
    (True, 4, -1, 1),
    (False, 0, -1, 2),
    (False, -1, 1, 1),
]


def _mask_parameters(make: Maker, number: int, batch: int, heads: int) -> tuple[Scoring, Sample]:
    causal, left, right, dims = _MASKS[number % len(_MASKS)]
    slopes = {0: None, 1: (heads,), 2: (batch, heads)}[dims]
    given = None if slopes is None else _slopes(make, *slopes)
    arguments = {
        "alibi_slopes": given,
        "p_dropout": 0.0,
        "softmax_scale": 0.25,
        "is_causal": causal,
        "window_size_left": left,
        "window_size_right": right,
    }
    return Scoring(0.25, causal, left, right, given), arguments


@samples("diopiFlashAttention")
def flash(make: Maker) -> Iterator[Sample]:
    for number in range(6):
        shape = _DENSE[number % len(_DENSE)]
        scoring, mask_parameters = _mask_parameters(make, number, shape[0], shape[3])
        sample = {**_operands(make, shape), **mask_parameters}
        if scoring.causal and scoring.slopes is not None:
            sample["softmax_lse"] = make.out(shape[0], shape[3], shape[1], dtype=torch.float32)
        yield sample
    yield {
        **_operands(make, _DENSE[0]),
        **_mask_parameters(make, 1, 2, 4)[1],
        "p_dropout": 0.25,
        "gen": make.seed(),
        "attention_out": make.out(2, 7, 4, 8),
    }


@samples("diopiFlashAttentionBackward")
def flash_backward(make: Maker) -> Iterator[Sample]:
    for number in range(6):
        shape = _DENSE[(number + 1) % len(_DENSE)]
        scoring, mask_parameters = _mask_parameters(make, number, shape[0], shape[3])
        given = _operands(make, shape)
        out, lse = _saved_anyway(given, scoring)
        yield {
            **given,
            **mask_parameters,
            "grad_output": make(*given["q"].shape),
            "attention_out": make.laid_out(out, written=True),
            "softmax_lse": make.laid_out(lse, written=True),
        }


def _saved_anyway(given: Sample, scoring: Scoring) -> tuple[torch.Tensor, torch.Tensor]:
    """Also where the logarithms are not judged: with causality as a window, which is the same."""
    if not scoring.causal:
        return _saved(given, scoring)
    return _saved(given, Scoring(scoring.scale, False, scoring.left, 0, scoring.slopes))


@samples("diopiFlashAttentionVarLen")
def flash_packed(make: Maker) -> Iterator[Sample]:
    for number in range(6):
        case = PACKED[number % len(PACKED)]
        scoring, mask_parameters = _mask_parameters(make, number, len(case[0]), case[2])
        sample = {
            **packed_operands(make, case),
            **mask_parameters,
            "cum_seq_q": _cumulative(make, case[0]),
            "cum_seq_kv": _cumulative(make, case[1]),
            "max_seqlen_q": max(case[0]),
            "max_seqlen_kv": max(case[1]),
        }
        if scoring.causal and scoring.slopes is not None:
            sample["softmax_lse"] = make.out(len(case[0]), case[2], max(case[0]), dtype=torch.float32)
        yield sample


@samples("diopiFlashAttentionVarLenBackward")
def flash_packed_backward(make: Maker) -> Iterator[Sample]:
    for number in range(6):
        case = PACKED[number % len(PACKED)]
        scoring, mask_parameters = _mask_parameters(make, number, len(case[0]), case[2])
        given = packed_operands(make, case)
        right = 0 if scoring.causal else scoring.right
        window = Scoring(scoring.scale, False, scoring.left, right, scoring.slopes)
        out, lse = _packed_saved(given, case, window)
        yield {
            **given,
            **mask_parameters,
            "grad_output": make(*given["q"].shape),
            "attention_out": make.laid_out(out, written=True),
            "softmax_lse": make.laid_out(lse, written=True),
            "cum_seq_q": _cumulative(make, case[0]),
            "cum_seq_kv": _cumulative(make, case[1]),
            "max_seqlen_q": max(case[0]),
            "max_seqlen_kv": max(case[1]),
        }
