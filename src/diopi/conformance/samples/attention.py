"""Samples of attention: dense, packed, customized; forward and backward.

Scales are powers of two, exact as `float` and as `double`. Backward samples save what the forward gives: the output rounded
to the dtype, the logarithms in float32 (float64 for float64).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from diopi.conformance.references.attention import (
    Scoring,
    customized_attention,
    customized_packed_attention,
    dense_attention,
    packed_attention,
)
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
_PACKED = [
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


def _saved(make: Maker, given: Sample, forward: Any, output: str) -> Sample:
    """What a forward that was computed in float64 saves, and the gradient that comes back to it."""
    out, lse = forward
    dtype = given["q"].dtype
    return {
        output: make.laid_out(out.to(dtype), written=True),
        "softmax_lse": make.laid_out(lse.to(torch.promote_types(dtype, torch.float32)), written=True),
        {"out": "grad_out", "attention_out": "grad_output"}[output]: make(*given["q"].shape),
    }


def _dense_saved(make: Maker, given: Sample, scoring: Scoring, output: str) -> Sample:
    q, k, v = (given[name].double() for name in "qkv")
    return _saved(make, given, dense_attention(q, k, v, scoring), output)


def _packed_saved(make: Maker, given: Sample, case: tuple[Any, ...], scoring: Scoring, output: str) -> Sample:
    q, k, v = (given[name].double() for name in "qkv")
    ends_q, ends_k = (torch.cumsum(torch.tensor((0, *n)), 0) for n in case[:2])
    return _saved(make, given, packed_attention(q, k, v, ends_q, ends_k, max(case[0]), scoring), output)


# ---- the older functions ----


def _attributes(scale: float, causal: bool, dropout: float = 0.0, debug: bool = False) -> Sample:
    return {"scale": scale, "is_causal": causal, "dropout_p": dropout, "return_debug_mask": debug}


@samples("diopiMultiHeadAttention")
def multi_head(make: Maker) -> Iterator[Sample]:
    for number, shape in enumerate(_DENSE):
        batch, queries, keys, heads, _, _ = shape
        debug = number % 2 == 0
        sample = _operands(make, shape) | _attributes(0.25, number in (0, 1, 4), debug=debug)
        if debug:
            sample["debug_attn_mask"] = make.out(batch, heads, queries, keys, dtype=torch.bool)
        yield sample
    blind = _operands(make, (2, 6, 4, 2, 2, 8))  # the first two queries see nothing
    yield {**blind, **_attributes(0.5, True), "softmax_lse": make.out(2, 2, 6, dtype=torch.float32)}
    dropped = {"gen": make.seed(), "out": make.out(2, 7, 4, 8)}
    yield {**_operands(make, _DENSE[0]), **_attributes(0.5, False, dropout=0.5), **dropped}


@samples("diopiMultiHeadAttentionBackward")
def multi_head_backward(make: Maker) -> Iterator[Sample]:
    for number, shape in enumerate(_DENSE):
        given, causal = _operands(make, shape), number in (0, 1, 4)
        saved = _dense_saved(make, given, Scoring(0.25, causal), "out")
        yield {**given, **saved, "dropout_p": 0.0, "is_causal": causal, "scale": 0.25}


def _packed_operands(make: Maker, case: tuple[Any, ...]) -> Sample:
    """q, k and v of packed sequences. Keys are never expanded: equal keys would leave nothing but rounding of the gradients."""
    lengths_q, lengths_k, heads, key_heads, width = case
    return {
        "q": make(sum(lengths_q), heads, width),
        "k": make(sum(lengths_k), key_heads, width, written=True),
        "v": make(sum(lengths_k), key_heads, width, written=True),
    }


def _lengths(make: Maker, case: tuple[Any, ...], dtype: torch.dtype = torch.int32) -> Sample:
    """Of the packed sequences, as the older functions call them."""
    cumulative = {
        "cum_seq_q": _cumulative(make, case[0], dtype),
        "cum_seq_k": _cumulative(make, case[1], dtype),
    }
    return {**cumulative, "max_q": max(case[0]), "max_k": max(case[1])}


@samples("diopiMultiHeadAttentionVarLen")
def multi_head_packed(make: Maker) -> Iterator[Sample]:
    for number, case in enumerate(_PACKED):
        debug = number % 2 == 0
        sample = _packed_operands(make, case) | _lengths(make, case, torch.int32 if debug else torch.int64)
        sample |= _attributes(0.25, number != 1, debug=debug)
        if debug:
            shape = (len(case[0]), case[2], max(case[0]), max(case[1]))
            sample["debug_attn_mask"] = make.out(*shape, dtype=torch.bool)
        yield sample
    dropped = {"gen": make.seed(), "out": make.out(sum(_PACKED[0][0]), 4, 8)}
    given = _packed_operands(make, _PACKED[0]) | _lengths(make, _PACKED[0])
    yield {**given, **_attributes(0.5, True, dropout=0.25), **dropped}


@samples("diopiMultiHeadAttentionVarLenBackward")
def multi_head_packed_backward(make: Maker) -> Iterator[Sample]:
    for number, case in enumerate(_PACKED):
        given, causal = _packed_operands(make, case), number != 1
        saved = _packed_saved(make, given, case, Scoring(0.25, causal), "out")
        attributes = {"dropout_p": 0.0, "is_causal": causal, "scale": 0.25}
        yield {**given, **saved, **_lengths(make, case), **attributes}


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


def _flash_scoring(make: Maker, number: int, batch: int, heads: int) -> Scoring:
    causal, left, right, dims = _MASKS[number]
    slopes = {0: None, 1: (heads,), 2: (batch, heads)}[dims]
    return Scoring(0.25, causal, left, right, None if slopes is None else _slopes(make, *slopes))


def _arguments(scoring: Scoring) -> Sample:
    return {
        "alibi_slopes": scoring.slopes,
        "p_dropout": scoring.dropout,
        "softmax_scale": scoring.scale,
        "is_causal": scoring.causal,
        "window_size_left": scoring.left,
        "window_size_right": scoring.right,
    }


def _as_window(scoring: Scoring) -> Scoring:
    """Causality as a window, which is the same: the logarithms are then judged in any case."""
    return replace(scoring, causal=False, right=0) if scoring.causal else scoring


@samples("diopiFlashAttention")
def flash(make: Maker) -> Iterator[Sample]:
    for number in range(6):
        shape = _DENSE[number % len(_DENSE)]
        scoring = _flash_scoring(make, number, shape[0], shape[3])
        sample = {**_operands(make, shape), **_arguments(scoring)}
        if scoring.causal and scoring.slopes is not None:
            sample["softmax_lse"] = make.out(shape[0], shape[3], shape[1], dtype=torch.float32)
        yield sample
    given = _operands(make, _DENSE[0]) | _arguments(_flash_scoring(make, 1, 2, 4))
    yield {**given, "p_dropout": 0.25, "gen": make.seed(), "attention_out": make.out(2, 7, 4, 8)}


@samples("diopiFlashAttentionBackward")
def flash_backward(make: Maker) -> Iterator[Sample]:
    for number in range(6):
        shape = _DENSE[(number + 1) % len(_DENSE)]
        scoring = _flash_scoring(make, number, shape[0], shape[3])
        given = _operands(make, shape)
        yield {
            **given,
            **_arguments(scoring),
            **_dense_saved(make, given, _as_window(scoring), "attention_out"),
        }


def _flash_lengths(make: Maker, case: tuple[Any, ...]) -> Sample:
    names = ("cum_seq_q", "cum_seq_kv", "max_seqlen_q", "max_seqlen_kv")
    return dict(zip(names, _lengths(make, case).values(), strict=True))


@samples("diopiFlashAttentionVarLen")
def flash_packed(make: Maker) -> Iterator[Sample]:
    for number in range(6):
        case = _PACKED[number % len(_PACKED)]
        scoring = _flash_scoring(make, number, len(case[0]), case[2])
        sample = {**_packed_operands(make, case), **_arguments(scoring), **_flash_lengths(make, case)}
        if scoring.causal and scoring.slopes is not None:
            sample["softmax_lse"] = make.out(len(case[0]), case[2], max(case[0]), dtype=torch.float32)
        yield sample


@samples("diopiFlashAttentionVarLenBackward")
def flash_packed_backward(make: Maker) -> Iterator[Sample]:
    for number in range(6):
        case = _PACKED[number % len(_PACKED)]
        scoring = _flash_scoring(make, number, len(case[0]), case[2])
        given = _packed_operands(make, case)
        saved = _packed_saved(make, given, case, _as_window(scoring), "attention_out")
        yield {**given, **_arguments(scoring), **saved, **_flash_lengths(make, case)}


# ---- the customized functions: layouts by name, masks, saved maxima and sums ----


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
    return {**_arguments(scoring), "attention_mask": scoring.mask}


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
        q, k, v = (given[name].double() for name in "qkv")
        keep = make.mask(2, heads, 5, 9, rate=0.5) if number == 0 else None
        used = scoring if keep is None else Scoring(0.25, dropout=0.5, keep=keep)
        yield {
            **given,
            **_customized_arguments(used),
            **_saved_rows(make, given["q"], customized_attention(q, k, v, used, heads, layout)),
            "dropout_mask": keep,
            "head_num": heads,
            "input_layout": layout,
        }


def _saved_rows(make: Maker, q: torch.Tensor, forward: tuple[Any, ...]) -> Sample:
    """What a forward saves, and the gradient that comes back to it."""
    out, _, largest, total, _ = forward
    kind = torch.promote_types(q.dtype, torch.float32)
    return {
        "attention_out": make.laid_out(out.to(q.dtype), written=True),
        "softmax_max": make.laid_out(largest.to(kind), written=True),
        "softmax_sum": make.laid_out(total.to(kind), written=True),
        "grad_output": make(*q.shape),
    }


def _customized_packed(make: Maker) -> Iterator[tuple[Sample, Scoring]]:
    for number, case in enumerate(_PACKED):
        mask = _mask(make, max(case[0]), max(case[1])) if number in (1, 2) else None
        scoring = Scoring(0.25, causal=number == 0, mask=mask)
        start = (0,) if number == 3 else ()
        ends_q, ends_k = (torch.cumsum(torch.tensor((*start, *n)), 0).tolist() for n in case[:2])
        lengths = {"max_seqlen_q": max(case[0]), "max_seqlen_kv": max(case[1])}
        given = _packed_operands(make, case) | _customized_arguments(scoring)
        yield {**given, "cum_seq_q": ends_q, "cum_seq_kv": ends_k, **lengths}, scoring


@samples("diopiCustomizedFlashAttentionVarLen")
def customized_packed(make: Maker) -> Iterator[Sample]:
    for given, _ in _customized_packed(make):
        yield given


@samples("diopiCustomizedFlashAttentionVarLenBackward")
def customized_packed_backward(make: Maker) -> Iterator[Sample]:
    for given, scoring in _customized_packed(make):
        q, k, v = (given[name].double() for name in "qkv")
        saved = customized_packed_attention(q, k, v, given["cum_seq_q"], given["cum_seq_kv"], scoring)
        yield {**given, **_saved_rows(make, given["q"], saved)}
