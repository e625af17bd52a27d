"""Checks that the operators of attention share."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from dlinfer.interface.checks import (
    FLOATS,
    finite,
    has_dtype,
    has_rank,
    has_shape,
    same_device,
    same_dtype,
    wrong,
)
from dlinfer.interface.paging import check_cache

MASKS = (torch.bool, *FLOATS)


def check_heads(name: str, heads: int, kv_heads: int, argument: str = "query") -> None:
    """Each head of keys serves the same number of heads of queries."""
    if kv_heads <= 0 or heads <= 0 or heads % kv_heads:
        raise wrong(name, argument, f"{heads} query heads cannot share {kv_heads} key heads evenly")


def check_output(name: str, attn_output: Tensor, query: Tensor, size_v: int, values: str) -> None:
    """What is written: a row for each query, heads of the size of values."""
    shape = [query.shape[0], query.shape[1], size_v]
    has_shape(name, "attn_output", attn_output, shape, f"tokens and heads of query, head size of {values}")
    same_dtype(name, "query", query, "attn_output", attn_output)
    same_device(name, "query", query, "attn_output", attn_output)


def check_extras(
    name: str, query: Tensor, scale: float, mask: Tensor | None, alibi_slopes: Tensor | None, soft_cap: float
) -> None:
    """What changes the scores."""
    finite(name, "softmax_scale", scale)
    if mask is not None:
        has_rank(name, "mask", mask, 2)
        has_dtype(name, "mask", mask, MASKS)
        same_device(name, "query", query, "mask", mask)
        if mask.shape[0] != query.shape[0]:
            raise wrong(
                name, "mask", f"has {mask.shape[0]} rows, expected {query.shape[0]}: one for each query token"
            )
    if alibi_slopes is not None:
        has_shape(name, "alibi_slopes", alibi_slopes, [query.shape[1]], "one for each query head")
        has_dtype(name, "alibi_slopes", alibi_slopes, FLOATS)
        same_device(name, "query", query, "alibi_slopes", alibi_slopes)
    if not 0 <= soft_cap < inf:
        raise wrong(name, "soft_cap", f"is {soft_cap}, expected a positive finite number, or 0 for none")


def check_paged(
    name: str,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    kv_scales: Tensor | None,
    kv_zeros: Tensor | None,
    quant_bits: int,
) -> int:
    """Query beside both caches; gives the size of a value head."""
    has_rank(name, "query", query, 3)
    has_dtype(name, "query", query)
    size = check_cache(name, "key_cache", key_cache, quant_bits, query, "query")
    size_v = check_cache(name, "value_cache", value_cache, quant_bits, query, "query")
    if size != query.shape[2]:
        raise wrong(name, "key_cache", f"has heads of {size} elements, expected {query.shape[2]} like query")
    if value_cache.shape[:3] != key_cache.shape[:3]:
        raise wrong(
            name,
            "value_cache",
            f"has shape {list(value_cache.shape)}, expected blocks and heads of key_cache, {list(key_cache.shape[:3])}",
        )
    if not key_cache.shape[1]:
        raise wrong(
            name, "key_cache", f"has shape {list(key_cache.shape)}, expected blocks of at least one token"
        )
    heads = key_cache.shape[2]
    check_heads(name, query.shape[1], heads)
    if quant_bits and kv_scales is None:
        raise wrong(name, "kv_scales", f"is missing, expected scales for caches of {quant_bits} bits")
    for argument, value in (("kv_scales", kv_scales), ("kv_zeros", kv_zeros)):
        if value is not None:
            _check_pair(name, argument, value, heads, size, size_v, query)
    return size_v


def _check_pair(
    name: str, argument: str, value: Tensor, heads: int, size: int, size_v: int, query: Tensor
) -> None:
    has_dtype(name, argument, value, FLOATS)
    same_device(name, "query", query, argument, value)
    each = [1, heads] + ([heads * size] if size == size_v else [])
    if not value.dim() or value.shape[0] != 2 or value.numel() // 2 not in each:
        wanted = " or ".join(f"[2, {count}]" for count in each)
        raise wrong(
            name,
            argument,
            f"has shape {list(value.shape)}, expected [2] or {wanted}: for key_cache, then value_cache",
        )
