"""Attention in the call forms of the serving frameworks.

`prefill_attention` and `paged_prefill_attention` have two forms each, written out as `..._0_16` and `..._0_18`; the public
function takes the arguments of either. Beyond what the frameworks pass, every form takes the keywords `window_size` (a
number of keys, or (left, right) as positions on both sides), `logit_softcapping` and `causal`.

Without a mask, fresh keys beside a cache are those of a decoder: causal. Fresh keys without a cache (`key_cache` is None)
are those of an encoder, of images for instance: every key is seen. `causal` says it outright.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dlinfer.errors import wrong
from dlinfer.ops.cache import pages, rows
from dlinfer.ops.calling import OVERLOADS, bits_of, explained
from dlinfer.ops.lengths import check_cumulative, check_even, cumulative, cumulative_beside, cumulative_of
from dlinfer.ops.masks import (
    Masks,
    Slopes,
    Window,
    by_token,
    check_template,
    for_batch,
    given,
    mask_parameters,
)

_prefill = OVERLOADS["prefill_attention"]
_paged = OVERLOADS["paged_prefill_attention"]
_decode = OVERLOADS["paged_decode_attention"]
_increment = OVERLOADS["incre_flash_attention"]
_fused = OVERLOADS["fused_attention"]

_OLD_NAMES = frozenset(("q_start_loc", "q_seq_len", "kv_seq_len", "cu_seq_lens_kv"))


def prefill_attention(*args: Any, **kwargs: Any) -> Tensor:
    """Attention over fresh keys; see `prefill_attention_0_16` and `prefill_attention_0_18` for the arguments."""
    if _is_old(args, kwargs, 7, 10, 14):
        return prefill_attention_0_16(*args, **kwargs)
    return prefill_attention_0_18(*args, **kwargs)


def paged_prefill_attention(*args: Any, **kwargs: Any) -> Tensor:
    """Attention over a paged cache; see `paged_prefill_attention_0_16` and `paged_prefill_attention_0_18`."""
    if _is_old(args, kwargs, 9, 13, 21):
        return paged_prefill_attention_0_16(*args, **kwargs)
    return paged_prefill_attention_0_18(*args, **kwargs)


def _is_old(args: tuple[Any, ...], kwargs: dict[str, Any], lengths: int, masks: int, most: int) -> bool:
    """0.16 has a third tensor of lengths where 0.18 has the largest query length; or one of its names is given.

    If that is no tensor at all, 0.16 still has a number of heads where 0.18 has masks, and more arguments.
    """
    count = len(args)
    if count > lengths and isinstance(args[lengths], Tensor):
        return True
    if count > masks and (
        count > most or (isinstance(args[masks], int) and not isinstance(args[lengths], int))
    ):
        return True
    return not _OLD_NAMES.isdisjoint(kwargs)


@explained("prefill_attention")
def prefill_attention_0_16(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor | None,
    value_cache: Tensor | None,
    q_start_loc: Tensor,
    q_seq_len: Tensor,
    kv_seq_len: Tensor,
    max_q_seq_len: int | None,
    num_q_heads: int,
    num_kv_heads: int,
    attn_mask: Masks,
    softmax_scale: float | None = None,
    alibi_slopes: Slopes = None,
    attn_output: Tensor | None = None,
    *,
    window_size: Window = None,
    logit_softcapping: float | None = None,
    causal: bool | None = None,
) -> Tensor:
    """Lengths and starts as tensors; masks hide where they are true."""
    cu_seqlens_q = cumulative_of(q_start_loc, q_seq_len)
    masks = given(attn_mask)
    mask = by_token(masks, q_seq_len, kv_seq_len) if masks else None
    if causal is None:
        causal = mask is None and key_cache is not None
    return _run_prefill(
        (query, key, value), cu_seqlens_q, kv_seq_len, max_q_seq_len, (num_q_heads, num_kv_heads), mask, causal,
        mask_parameters(query, softmax_scale, alibi_slopes, window_size, logit_softcapping), attn_output,
    )  # fmt: skip


@explained("prefill_attention")
def prefill_attention_0_18(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor | None,
    value_cache: Tensor | None,
    q_seqlens: Tensor,
    kv_seqlens: Tensor,
    max_q_seq_len: int | None,
    num_q_heads: int,
    num_kv_heads: int,
    attn_mask: Masks,
    softmax_scale: float | None = None,
    alibi_slopes: Slopes = None,
    attn_output: Tensor | None = None,
    *,
    actual_seq_lengths_cpu: Tensor | None = None,
    window_size: Window = None,
    logit_softcapping: float | None = None,
    causal: bool | None = None,
) -> Tensor:
    """Lengths as tensors, and on the CPU where each sequence ends; a mask is a template that says 'causal'."""
    masks = given(attn_mask)
    if masks:
        check_template(masks, query)
    if causal is None:
        causal = bool(masks) or key_cache is not None
    cu_seqlens_q = cumulative_beside(actual_seq_lengths_cpu, q_seqlens)
    return _run_prefill(
        (query, key, value), cu_seqlens_q, kv_seqlens, max_q_seq_len, (num_q_heads, num_kv_heads), None, causal,
        mask_parameters(query, softmax_scale, alibi_slopes, window_size, logit_softcapping), attn_output,
    )  # fmt: skip


@explained("paged_prefill_attention")
def paged_prefill_attention_0_16(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    block_size: int,
    q_start_loc: Tensor,
    q_seq_len: Tensor,
    kv_seq_len: Tensor,
    cu_seq_lens_kv: Tensor | None,
    max_q_seq_len: int | None,
    max_kv_seq_len: int | None,
    num_q_heads: int,
    num_kv_heads: int,
    attn_mask: Masks,
    head_size_v: int = 0,
    softmax_scale: float | None = None,
    alibi_slopes: Slopes = None,
    attn_output: Tensor | None = None,
    kv_scales: Tensor | None = None,
    kv_zeros: Tensor | None = None,
    quant_bits: int | None = 0,
    *,
    window_size: Window = None,
    logit_softcapping: float | None = None,
    causal: bool | None = None,
) -> Tensor:
    """Lengths and starts as tensors; masks hide where they are true. The keys must be in the cache already."""
    cu_seqlens_q = cumulative_of(q_start_loc, q_seq_len)
    if cu_seq_lens_kv is not None:
        check_cumulative(cu_seq_lens_kv, kv_seq_len)
    masks = given(attn_mask)
    mask = by_token(masks, q_seq_len, kv_seq_len) if masks else None
    return _run_paged(
        query, (key_cache, value_cache), (block_table, block_size), (cu_seqlens_q, kv_seq_len),
        (max_q_seq_len, max_kv_seq_len), (num_q_heads, num_kv_heads), mask,
        mask is None if causal is None else causal, head_size_v,
        mask_parameters(query, softmax_scale, alibi_slopes, window_size, logit_softcapping), attn_output,
        (kv_scales, kv_zeros, quant_bits if type(quant_bits) is int else bits_of(quant_bits)),
    )  # fmt: skip


@explained("paged_prefill_attention")
def paged_prefill_attention_0_18(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    block_size: int,
    actual_q_seqlens_cpu: Tensor,
    kv_seqlens_cpu: Tensor,
    max_q_seq_len: int | None,
    max_kv_seq_len: int | None,
    num_q_heads: int,
    num_kv_heads: int,
    attn_mask: Masks,
    head_size_v: int = 0,
    softmax_scale: float | None = None,
    alibi_slopes: Slopes = None,
    attn_output: Tensor | None = None,
    kv_scales: Tensor | None = None,
    kv_zeros: Tensor | None = None,
    quant_bits: int | None = 0,
    *,
    window_size: Window = None,
    logit_softcapping: float | None = None,
    causal: bool | None = None,
) -> Tensor:
    """Cumulative query lengths and key lengths, mostly on the CPU; a mask is a template that says 'causal'."""
    masks = given(attn_mask)
    if masks:
        check_template(masks, query)
    return _run_paged(
        query, (key_cache, value_cache), (block_table, block_size), (cumulative(actual_q_seqlens_cpu), kv_seqlens_cpu),
        (max_q_seq_len, max_kv_seq_len), (num_q_heads, num_kv_heads), None, causal is None or causal, head_size_v,
        mask_parameters(query, softmax_scale, alibi_slopes, window_size, logit_softcapping), attn_output,
        (kv_scales, kv_zeros, quant_bits if type(quant_bits) is int else bits_of(quant_bits)),
    )  # fmt: skip


@explained("paged_decode_attention")
def paged_decode_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    block_size: int,
    q_seq_len: Tensor | None,
    kv_seq_len: Tensor,
    max_kv_seq_len: int | None,
    num_q_heads: int,
    num_kv_heads: int,
    head_size_v: int = 0,
    softmax_scale: float | None = None,
    alibi_slopes: Slopes = None,
    attn_output: Tensor | None = None,
    kv_scales: Tensor | None = None,
    kv_zeros: Tensor | None = None,
    quant_bits: int | None = 0,
    *,
    window_size: Window = None,
    logit_softcapping: float | None = None,
) -> Tensor:
    """Attention of the newest tokens; `q_seq_len` are lengths (0.16) or cumulative lengths (0.18), equal for all sequences."""
    query_rows = _heads(query, num_q_heads, "query", "num_q_heads")
    bits = quant_bits if type(quant_bits) is int else bits_of(quant_bits)
    key_pages, value_pages = _caches((key_cache, value_cache), block_size, num_kv_heads, head_size_v, bits)
    if q_seq_len is not None:
        check_even(q_seq_len, query_rows.shape[0], block_table)
    output = _output(query, attn_output, value_pages, bits)
    scale, slopes, left, _, cap = mask_parameters(
        query, softmax_scale, alibi_slopes, window_size, logit_softcapping
    )
    _decode(
        query_rows, key_pages, value_pages, block_table, kv_seq_len, max_kv_seq_len or 0,
        rows("attn_output", output), scale, slopes, left, cap, kv_scales, kv_zeros, bits,
    )  # fmt: skip
    return output


@explained("incre_flash_attention")
def incre_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_heads: int,
    input_layout: str = "BSH",
    softmax_scale: float | None = None,
) -> Tensor:
    """Attention of new tokens over caches without pages, all keys visible."""
    if softmax_scale is None:
        size = query.shape[-1] // max(num_heads, 1) if input_layout == "BSH" else query.shape[-1]
        softmax_scale = max(size, 1) ** -0.5
    return _increment(query, key, value, num_heads, input_layout, softmax_scale)


@explained("fused_attention")
def fused_attention(
    query_states: Tensor, key_states: Tensor, value_states: Tensor, mask: Masks = None
) -> Tensor:
    """Attention of a batch of equal lengths [batch, length, heads, size]; without a mask it is causal."""
    batch = query_states.shape[0] if query_states.dim() else 0
    return _fused(query_states, key_states, value_states, for_batch(given(mask), batch))


# ---- from the call forms to the interface ----


def _heads(states: Tensor, heads: int, argument: str, count: str) -> Tensor:
    found = rows(argument, states)
    if found.shape[1] != heads:
        raise wrong(
            count, f"is {heads}, but {argument} has shape {list(states.shape)} with {found.shape[1]} heads"
        )
    return found


def _head_size(cache: Tensor, bits: int) -> int:
    return cache.shape[-1] * 2 if bits == 4 else cache.shape[-1]


def _caches(
    caches: tuple[Tensor, Tensor], block_size: int, heads: int, head_size_v: int, bits: int
) -> tuple[Tensor, Tensor]:
    """Both caches as the interface has them. Values of latent attention are the first part of the keys."""
    key_cache, value_cache = pages(caches[0]), pages(caches[1])
    shape = key_cache.shape
    if len(shape) != 4 or shape[1] != block_size:
        raise wrong("block_size", f"is {block_size}, but key_cache has shape {list(caches[0].shape)}")
    if shape[2] != heads:
        raise wrong("num_kv_heads", f"is {heads}, but key_cache has shape {list(caches[0].shape)}")
    if head_size_v and value_cache.dim() == 4 and _head_size(value_cache, bits) != head_size_v:
        whole = value_cache if value_cache.shape[-1] else key_cache
        if bits == 4 or not 0 < head_size_v <= whole.shape[-1]:
            raise wrong(
                "head_size_v",
                f"is {head_size_v}, but value_cache has shape {list(caches[1].shape)} (quant_bits {bits})",
            )
        value_cache = whole[..., :head_size_v]
    return key_cache, value_cache


def _output(query: Tensor, attn_output: Tensor | None, values: Tensor, bits: int = 0) -> Tensor:
    """Where the result goes: what the caller gave, or new memory shaped like query."""
    if attn_output is not None:
        return attn_output
    size_v = _head_size(values, bits)
    if query.shape[-1] == size_v:
        return torch.empty_like(query, memory_format=torch.contiguous_format)
    return query.new_empty([*query.shape[:-1], size_v])


def _run_prefill(
    states: tuple[Tensor, Tensor, Tensor],
    cu_seqlens_q: Tensor,
    kv_lengths: Tensor,
    max_q_len: int | None,
    heads: tuple[int, int],
    mask: Tensor | None,
    causal: bool,
    scores: tuple[float, Tensor | None, int, int, float],
    attn_output: Tensor | None,
) -> Tensor:
    query = _heads(states[0], heads[0], "query", "num_q_heads")
    key = _heads(states[1], heads[1], "key", "num_kv_heads")
    value = rows("value", states[2])
    output = _output(states[0], attn_output, value)
    scale, *rest = scores
    _prefill(
        query, key, value, cu_seqlens_q, kv_lengths, max_q_len or 0, rows("attn_output", output), scale, causal,
        mask, *rest,
    )  # fmt: skip
    return output


def _run_paged(
    states: Tensor,
    caches: tuple[Tensor, Tensor],
    blocks: tuple[Tensor, int],
    lengths: tuple[Tensor, Tensor],
    longest: tuple[int | None, int | None],
    heads: tuple[int, int],
    mask: Tensor | None,
    causal: bool,
    head_size_v: int,
    scores: tuple[float, Tensor | None, int, int, float],
    attn_output: Tensor | None,
    quantised: tuple[Tensor | None, Tensor | None, int],
) -> Tensor:
    query = _heads(states, heads[0], "query", "num_q_heads")
    key_pages, value_pages = _caches(caches, blocks[1], heads[1], head_size_v, quantised[2])
    output = _output(states, attn_output, value_pages, quantised[2])
    scale, *rest = scores
    _paged(
        query, key_pages, value_pages, blocks[0], *lengths, longest[0] or 0, longest[1] or 0,
        rows("attn_output", output), scale, causal, mask, *rest, *quantised,
    )  # fmt: skip
    return output
