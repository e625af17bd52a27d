"""Filling caches, and how paged caches lie in memory."""

# mypy: disable-error-code="empty-body"
# Functions without a body are derived from the schema.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from dlinfer.errors import DlinferArgumentError, wrong
from dlinfer.ops.calling import OVERLOADS, bits_of, derived, explained
from dlinfer.settings import CACHE_LAYOUT

_fill = OVERLOADS["fill_kv_cache"]

LAYOUTS = ("BSND", "BNSD")
_LAYOUT = "BSND"


def set_cache_layout(layout: str) -> None:
    """How the caller's paged caches lie: BSND [blocks, block_size, kv_heads, size], or BNSD with heads before tokens.

    Kernels see BSND always, as a view of the same memory. DLINFER_CACHE_LAYOUT sets it for a process.
    """
    global _LAYOUT
    if layout not in LAYOUTS:
        raise DlinferArgumentError(
            "set_cache_layout", "layout", f"is {layout!r}, expected {' or '.join(LAYOUTS)}"
        )
    _LAYOUT = layout


set_cache_layout(CACHE_LAYOUT.get())


@contextmanager
def cache_layout(layout: str) -> Iterator[None]:
    """`set_cache_layout` for a while."""
    before = _LAYOUT
    set_cache_layout(layout)
    try:
        yield
    finally:
        set_cache_layout(before)


def pages(cache: Tensor) -> Tensor:
    """A paged cache as the interface has it."""
    return cache if _LAYOUT == "BSND" or cache.dim() != 4 else cache.transpose(1, 2)


def rows(argument: str, states: Tensor) -> Tensor:
    """[tokens, heads, size]; one more dimension of length 1 in front is dropped."""
    if states.dim() == 3:
        return states
    if states.dim() != 4 or states.shape[0] != 1:
        raise wrong(
            argument, f"has shape {list(states.shape)}, expected [tokens, heads, size] or a 1 in front of it"
        )
    return states.squeeze(0)


def _pair(name: str, values: Sequence[Tensor | None]) -> tuple[Tensor | None, Tensor | None]:
    """(scale, zero) of a sequence that may be shorter."""
    if not values:
        return None, None
    if len(values) > 2:
        raise wrong(name, f"has {len(values)} elements, expected scale and zero, or none")
    padded = [*values, None, None]
    return padded[0], padded[1]


@explained("fill_kv_cache")
def fill_kv_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    kv_indices: Tensor,
    k_scales_zeros: Sequence[Tensor | None] = (),
    v_scales_zeros: Sequence[Tensor | None] = (),
    quant_bits: int | None = 0,
) -> tuple[Tensor, Tensor]:
    """Writes keys and values into their slots of the paged caches, and returns the caches."""
    bits = quant_bits if type(quant_bits) is int else bits_of(quant_bits)
    if value is None or value_cache is None:
        missing = "value" if value is None else "value_cache"
        raise wrong(missing, "is None, expected a tensor (for keys only: of size 0)")
    key_scale, key_zero = _pair("k_scales_zeros", k_scales_zeros)
    value_scale, value_zero = _pair("v_scales_zeros", v_scales_zeros)
    # Keys only: the cache of an indexer, given twice, or values that are part of the keys and have no cache.
    keys_only = value_cache is key_cache or (value_cache.dim() > 0 and not value_cache.shape[-1])
    if value_cache is key_cache and value is not key:
        raise wrong(
            "value_cache", "is key_cache itself, expected another cache for values that are not the keys"
        )
    _fill(
        rows("key", key),
        pages(key_cache),
        None if keys_only else rows("value", value),
        None if keys_only else pages(value_cache),
        kv_indices if kv_indices.dim() == 1 else kv_indices.reshape(-1),
        key_scale if bits else None,
        key_zero if bits else None,
        value_scale if bits and not keys_only else None,
        value_zero if bits and not keys_only else None,
        bits,
    )
    return key_cache, value_cache


@derived
def fill_contiguous_kvcache(
    key_cache: Tensor, value_cache: Tensor, key_state: Tensor, value_state: Tensor
) -> tuple[Tensor, Tensor]:
    """Caches without pages, longer by the new tokens."""


@derived
def get_cache_len(cache: Tensor) -> int:
    """How many tokens a cache without pages holds."""
