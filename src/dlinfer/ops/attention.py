"""Attention in the call forms of the serving frameworks.

`prefill_attention` and `paged_prefill_attention` take two forms, which differ in how they give lengths. That of LMDeploy 0.18
is written out as `..._0_18`; that of 0.16 has the arguments of `_lengths_0_16` in place of two of them. Beyond what the
frameworks pass, every form takes the keywords `window_size` (a number of keys, or (left, right) as positions on both
sides), `logit_softcapping` and `causal`.

Without a mask, fresh keys beside a cache are those of a decoder: causal. Fresh keys without a cache (`key_cache` is None)
are those of an encoder, of images for instance: every key is seen. `causal` says it outright.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from dlinfer.errors import wrong
from dlinfer.ops.cache import pages, rows
from dlinfer.ops.calling import OVERLOADS, bits_of, explained
from dlinfer.ops.lengths import (
    are_lengths,
    check_cumulative,
    check_even,
    cumulative,
    cumulative_beside,
    cumulative_of,
)
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

_NAMES_0_16 = ("q_start_loc", "q_seq_len", "kv_seq_len", "cu_seq_lens_kv")


def prefill_attention(*args: Any, **kwargs: Any) -> Tensor:
    """Attention over fresh keys; see `prefill_attention_0_18` for the arguments."""
    if _is_0_16(args, kwargs, 7, 10, 14):
        return prefill_attention_0_18(**_PREFILL_0_16(args, kwargs))
    return prefill_attention_0_18(*args, **kwargs)


def paged_prefill_attention(*args: Any, **kwargs: Any) -> Tensor:
    """Attention over a paged cache; see `paged_prefill_attention_0_18` for the arguments."""
    if _is_0_16(args, kwargs, 9, 13, 21):
        return paged_prefill_attention_0_18(**_PAGED_0_16(args, kwargs))
    return paged_prefill_attention_0_18(*args, **kwargs)


def _is_0_16(args: tuple[Any, ...], kwargs: dict[str, Any], lengths: int, masks: int, most: int) -> bool:
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
    return any(name in kwargs for name in _NAMES_0_16)


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
    cu_seqlens_q: Tensor | None = None,
) -> Tensor:
    """Lengths as tensors, and on the CPU where each sequence ends; a mask is a template that says 'causal'.

    With `cu_seqlens_q` lengths and masks are those of 0.16: masks hide where they are true.
    """
    masks = given(attn_mask)
    mask = _mask(masks, query, q_seqlens if cu_seqlens_q is not None else None, kv_seqlens)
    if causal is None:
        causal = mask is None and (bool(masks) or key_cache is not None)
    if cu_seqlens_q is None:
        cu_seqlens_q = cumulative_beside(actual_seq_lengths_cpu, q_seqlens)
    value_rows = rows("value", value)
    output = _output(query, attn_output, value_rows)
    scale, *rest = mask_parameters(query, softmax_scale, alibi_slopes, window_size, logit_softcapping)
    _prefill(
        _heads(query, num_q_heads, "query", "num_q_heads"), _heads(key, num_kv_heads, "key", "num_kv_heads"), value_rows,
        cu_seqlens_q, kv_seqlens, max_q_seq_len or 0, rows("attn_output", output), scale, causal, mask, *rest,
    )  # fmt: skip
    return output


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
    cu_seqlens_q: Tensor | None = None,
) -> Tensor:
    """Cumulative query lengths and key lengths, mostly on the CPU; a mask is a template that says 'causal'.

    With `cu_seqlens_q` lengths and masks are those of 0.16, as for `prefill_attention_0_18`. The keys are in the cache already.
    """
    mask = _mask(
        given(attn_mask), query, actual_q_seqlens_cpu if cu_seqlens_q is not None else None, kv_seqlens_cpu
    )
    if cu_seqlens_q is None:
        cu_seqlens_q = cumulative(actual_q_seqlens_cpu)
    bits = quant_bits if type(quant_bits) is int else bits_of(quant_bits)
    query_rows = _heads(query, num_q_heads, "query", "num_q_heads")
    key_pages, value_pages = _caches((key_cache, value_cache), block_size, num_kv_heads, head_size_v, bits)
    output = _output(query, attn_output, value_pages, bits)
    scale, *rest = mask_parameters(query, softmax_scale, alibi_slopes, window_size, logit_softcapping)
    _paged(
        query_rows, key_pages, value_pages, block_table, cu_seqlens_q, kv_seqlens_cpu, max_q_seq_len or 0,
        max_kv_seq_len or 0, rows("attn_output", output), scale, mask is None if causal is None else causal, mask, *rest,
        kv_scales, kv_zeros, bits,
    )  # fmt: skip
    return output


def _mask(masks: list[Tensor], query: Tensor, q_lengths: Tensor | None, kv_lengths: Tensor) -> Tensor | None:
    """One mask by token where the query lengths of 0.16 are given; the template of 0.18 is none."""
    if masks and q_lengths is not None:
        return by_token(masks, q_lengths, kv_lengths)
    if masks:
        check_template(masks, query)
    return None


def _lengths_0_16(
    q_start_loc: Tensor, q_seq_len: Tensor, kv_seq_len: Tensor, cu_seq_lens_kv: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """cu_seqlens_q, query lengths and key lengths of starts and lengths, which must agree."""
    cu_seqlens_q = cumulative_of(q_start_loc, q_seq_len)
    are_lengths("kv_seq_len", kv_seq_len, q_seq_len)
    if cu_seq_lens_kv is not None:
        check_cumulative(cu_seq_lens_kv, kv_seq_len)
    return cu_seqlens_q, q_seq_len, kv_seq_len


def _from_0_16(
    operator: str, function: Callable[..., Any], lengths: int, count: int
) -> Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]:
    """What turns arguments of 0.16, `count` of which are lengths, into those of 0.18 by name, where `lengths` is the first."""
    names = tuple(signature(function).parameters)
    q_lengths, kv_lengths = names[lengths : lengths + 2]
    order = (*names[:lengths], *_NAMES_0_16[:count], *names[lengths + 2 :])
    converted = explained(operator)(_lengths_0_16)

    def convert(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        given = {**dict(zip(order, args, strict=False)), **kwargs}
        if len(given) < len(args) + len(kwargs):
            raise TypeError(f"{operator}: an argument is given twice, or there are more than {len(order)}")
        found = converted(**{name: given.pop(name) for name in _NAMES_0_16 if name in given})
        return given | dict(zip(("cu_seqlens_q", q_lengths, kv_lengths), found, strict=True))

    return convert


_PREFILL_0_16 = _from_0_16("prefill_attention", prefill_attention_0_18, 5, 3)
_PAGED_0_16 = _from_0_16("paged_prefill_attention", paged_prefill_attention_0_18, 7, 4)


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
