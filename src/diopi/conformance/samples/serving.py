"""Samples of what surrounds attention: rotary embedding, RMS normalisation, masked softmax, penalties, caches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch

from diopi.conformance.references.serving import masked_softmax
from diopi.conformance.samples import Maker, Sample, samples, table


def _fixed(
    make: Maker, values: torch.Tensor | Sequence[int], dtype: torch.dtype = torch.int32
) -> torch.Tensor:
    """Positions and lengths in the layout of the variation, but not expanded: that would change them."""
    numbers = values if isinstance(values, torch.Tensor) else torch.tensor(values, dtype=dtype)
    return make.laid_out(numbers, written=True)


# ---- rotary embedding ----


table(
    "diopiRotaryEmbedding",
    "cos sin x conj interleaved",
    *(((7, 1, 4), (7, 1, 4), (2, 7, 3, 8), *how) for how in itertools.product((False, True), repeat=2)),
    ((5, 3), (5, 3), (5, 6), False, False),
    ((5,), (5,), (3, 2, 10), False, True),
    ((1, 33, 1, 19), (1, 33, 1, 19), (1, 33, 4, 38), False, False),
    ((2,), (2,), (0, 4), False, False),
    cos=(-1, 1),
    sin=(-1, 1),
)
table(
    "diopiRotaryEmbeddingV2",
    "query key cos sin dim",
    ((5, 4 * 8), (5, 2 * 8), (5, 8), (5, 8), 8),
    ((5, 3, 6), (5, 1, 6), (5, 1, 6), (5, 1, 6), 6),
    ((2, 3, 2, 10), (2, 3, 2, 10), (2, 3, 1, 10), (2, 3, 1, 10), 10),
    ((33, 4 * 34), (33, 4 * 34), (33, 34), (33, 34), 34),
    cos=(-1, 1),
    sin=(-1, 1),
)


# ---- RMS normalisation ----

# shape, how many dimensions are normalised, weight, bias
_RMS = [
    ((4, 10), 1, True, False),
    ((2, 3, 7), 1, True, True),
    ((2, 3, 5), 2, False, False),
    ((6,), 1, False, True),
    ((5, 1025), 1, True, False),
    ((3, 2, 2, 4), 3, True, True),
]


def _rms(make: Maker) -> Iterator[tuple[Sample, tuple[int, ...]]]:
    """The arguments that both directions have, and what the first is normalised over."""
    for number, (shape, dims, weight, bias) in enumerate(_RMS):
        normalized = shape[-dims:]
        sample: Sample = {
            "input": make(*shape),
            "normalized_shape": list(normalized),
            "weight": make.positive(*normalized) if weight else None,
            "bias": make(*normalized, low=-1, high=1) if bias else None,
            "eps": (1e-5, 1e-6, 0.125)[number % 3],
        }
        yield sample, tuple(range(-dims, 0))


@samples("diopiRMSNorm")
def rms_norm(make: Maker) -> Iterator[Sample]:
    for number, (sample, dims) in enumerate(_rms(make)):
        if number == 1:
            kept = sample["input"].shape[: -len(dims)]
            sample["inv_rms"] = make.out(*kept, dtype=torch.promote_types(make.dtype, torch.float32))
        yield sample


@samples("diopiRMSNormBackward")
def rms_norm_backward(make: Maker) -> Iterator[Sample]:
    for number, (sample, dims) in enumerate(_rms(make)):
        given = sample["input"]
        inverse = (given.double().square().mean(dims, keepdim=number != 1) + sample["eps"]).rsqrt()
        saved = _fixed(make, inverse.to(torch.promote_types(make.dtype, torch.float32)))
        yield {**sample, "grad_output": make(*given.shape), "inv_rms": saved}


# ---- masked softmax ----


def _masks(make: Maker, shape: tuple[int, ...]) -> Iterator[torch.Tensor | None]:
    """None, booleans that are broadcast, and numbers; the first key of a row is always shown."""
    hidden = make.mask(shape[0], 1, *shape[2:], rate=0.4).clone()
    hidden[..., 0] = False
    yield None
    yield _fixed(make, hidden)
    yield _fixed(make, hidden.to(make.dtype))


@samples("diopiScaledMaskedSoftmax")
def softmax(make: Maker) -> Iterator[Sample]:
    for shape in ((2, 3, 5, 7), (1, 2, 33, 40)):
        for mask in _masks(make, shape):
            yield {"input": make(*shape), "mask": mask, "scale": 0.5, "fixed_triu_mask": False}
    yield {"input": make(2, 2, 6, 6), "mask": None, "scale": 2.0, "fixed_triu_mask": True}


@samples("diopiScaledMaskedSoftmaxBackward")
def softmax_backward(make: Maker) -> Iterator[Sample]:
    cases = [((2, 3, 5, 7), mask, False) for mask in _masks(make, (2, 3, 5, 7))]
    for shape, mask, triangle in (*cases, ((2, 2, 6, 6), None, True), ((1, 2, 33, 40), None, False)):
        output = make.laid_out(masked_softmax(make(*shape), mask, 0.5, triangle))
        how = {"mask": mask, "scale": 0.5, "fixed_triu_mask": triangle}
        yield {"grad_output": make(*shape), "output": output, **how}


# ---- penalties ----


@samples("diopiApplyPenalty")
def penalty(make: Maker) -> Iterator[Sample]:
    for vocabulary, lengths in ((20, (3, 5)), (37, (4, 0, 7)), (1000, (20,))):
        batch, total = len(lengths), sum(lengths)
        ids = torch.cat([make.permutation(vocabulary)[:n] for n in lengths])
        yield {
            "logits": make(batch, vocabulary, written=True),
            "presence_penalty": make.positive(batch),
            "frequency_penalty": make.positive(batch),
            "p_token_ids": _fixed(make, ids),
            "p_token_counts": make.index(total, low=1, high=5),
            "p_cumsum_seq_len": _fixed(make, [0, *itertools.accumulate(lengths)]),
            "p_max_len_in_batch": max(lengths),
        }


@samples("diopiApplyPenaltyV2")
def penalty_flat(make: Maker) -> Iterator[Sample]:
    for batch, vocabulary, count, each in ((2, 20, 9, 9), (3, 37, 12, 1), (1, 1000, 40, 40)):
        yield {
            "logits": make(batch, vocabulary, written=True),
            "presence_penalty": make.positive(each),
            "frequency_penalty": make.positive(each),
            "repetition_penalty": make.positive(each, low=0.5, high=2.0),
            "p_token_ids": _fixed(make, make.permutation(batch * vocabulary)[:count]),
            "p_token_counts": make.index(count, low=1, high=5),
        }


# ---- caches ----


@samples("diopiDestIndexCopyKV")
def copy_to_cache(make: Maker) -> Iterator[Sample]:
    for rows, count, shape in ((9, 4, (2, 8)), (7, 7, (3, 5)), (64, 20, (4, 16)), (5, 0, (2, 3)), (6, 2, ())):
        slots = make.permutation(rows)[:count]
        yield {
            "out": make(rows, *shape, written=True),
            "k": make(count, *shape),
            "dest_loc": _fixed(make, slots.to(torch.int32 if rows % 2 else torch.int64)),
        }


# lengths of the sequences, heads, key heads, width, more columns than the longest
_TOKENS = [((3, 5, 2), 4, 4, 8, 0), ((7, 1), 4, 2, 16, 3), ((40,), 2, 1, 5, 0), ((9, 13, 4, 1), 2, 2, 12, 2)]


def _located(make: Maker, lengths: tuple[int, ...], more: int) -> Sample:
    """Slots in a cache of twice as many rows as needed; unused ones are somewhere outside of it."""
    longest, rows = max(lengths), 2 * sum(lengths)
    slots = make.permutation(rows)
    b_loc = torch.full((len(lengths), longest + more), 10**6, dtype=torch.int32)
    starts = [0, *itertools.accumulate(lengths)][:-1]
    for b, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        b_loc[b, longest - length : longest] = slots[start : start + length].to(torch.int32)
    return {
        "b_loc": _fixed(make, b_loc),
        "b_start_loc": _fixed(make, starts),
        "b_seq_len": _fixed(make, lengths),
        "max_input_len": longest,
    }


@samples("diopiTokenAttentionInference")
def token_attention(make: Maker) -> Iterator[Sample]:
    for lengths, heads, key_heads, width, more in _TOKENS:
        yield {
            "q": make(len(lengths), heads, width),
            "k": make(2 * sum(lengths), key_heads, width),
            **_located(make, lengths, more),
        }


@samples("diopiTokenSoftmaxReduceVInference")
def token_values(make: Maker) -> Iterator[Sample]:
    for lengths, heads, key_heads, width, more in _TOKENS:
        located = _located(make, lengths, more)
        yield {
            "logics": make(heads, sum(lengths)),
            "v": make(2 * sum(lengths), key_heads, width),
            **located,
            "other_kv_index": int(located["b_loc"][0, located["max_input_len"] - 1]),
        }


@samples("diopiContextAttentionInference")
def context_attention(make: Maker) -> Iterator[Sample]:
    for lengths, heads, key_heads, width, _ in _TOKENS:
        total = sum(lengths)
        yield {
            "q": make(total, heads, width),
            "k": make(total, key_heads, width),
            "v": make(total, key_heads, width),
            "b_start_loc": _fixed(make, [0, *itertools.accumulate(lengths)][:-1]),
            "b_seq_len": _fixed(make, lengths),
            "max_input_len": max(lengths),
        }


# lengths, heads, key heads (0: as many), width, rows of a block, whether there is a mask
_PAGED = [
    ((3, 9, 4), 4, 4, 8, 4, False),
    ((7, 1), 4, 2, 6, 2, True),
    ((40,), 2, 0, 5, 16, False),
    ((5, 16), 2, 1, 12, 8, True),
]


@samples("diopiPagedAttention")
def paged_attention(make: Maker) -> Iterator[Sample]:
    for number, (lengths, heads, key_heads, width, size, masked) in enumerate(_PAGED):
        batch, most = len(lengths), max(math.ceil(n / size) for n in lengths)
        blocks = batch * most + 2
        hidden = make.mask(batch, most * size, rate=0.3).clone()
        hidden[:, 0] = False
        rows = (*((blocks, size) if number % 2 else (blocks * size,)), (key_heads or heads) * width)
        block_table = make.permutation(blocks)[: batch * most].view(batch, most).to(torch.int32)
        yield {
            "q": make(batch, heads * width),
            "k": make(*rows),
            "v": make(*rows),
            "attenMask": _fixed(make, hidden) if masked else None,
            "actual_seq_lengths": list(lengths),
            "num_heads": heads,
            "num_kv_heads": key_heads,
            "dim": width,
            "block_table": _fixed(make, block_table),
            "block_size": size,
        }


# lengths, padded to, heads, key heads (0: as many), width, mask
_PROMPTS = [
    ((3, 5), 5, 4, 4, 8, "causal"),
    ((7, 2, 4), 9, 4, 2, 6, "none"),
    ((6, 6), 6, 2, 0, 5, "each"),
    ((33,), 34, 2, 1, 12, "causal"),
]


@samples("diopiPromptFlashAttention")
def prompt_attention(make: Maker) -> Iterator[Sample]:
    for number, (lengths, longest, heads, key_heads, width, kind) in enumerate(_PROMPTS):
        batch = len(lengths)
        first = (batch, longest) if number % 2 else (batch * longest,)
        mask = None
        if kind == "causal":
            mask = torch.ones(1, longest, longest, dtype=torch.bool).triu(1)
        elif kind == "each":
            mask = make.mask(batch, 1, longest, longest, rate=0.3).clone()
            mask[..., 0] = False
        yield {
            "query": make(*first, heads * width),
            "key": make(*first, (key_heads or heads) * width),
            "value": make(*first, (key_heads or heads) * width),
            "atten_mask": None if mask is None else _fixed(make, mask),
            "actual_seq_lengths": list(lengths),
            "max_input_len": longest,
            "num_heads": heads,
            "num_kv_heads": key_heads,
            "dim": width,
        }


table(
    "diopiMatmulAllReduce",
    "x1 x2 bias group reduce_op comm_turn stream_mode",
    ((3, 5), (5, 4), (4,), "", "sum", 0, 1),
    ((2, 3, 7), (7, 5), None, "", "sum", 0, 1),
    ((33, 40), (40, 17), (17,), "", "sum", 0, 1),
    ((0, 3), (3, 2), None, "", "sum", 0, 1),
    ((4, 0), (0, 3), (3,), "", "sum", 0, 1),
)
