"""Declarations: writing keys and values into caches."""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.errors import wrong
from dlinfer.interface.checks import (
    FLOATS,
    INTEGERS,
    alike,
    check_cache,
    check_scale,
    check_slots,
    has_dtype,
    has_rank,
    has_shape,
    is_vector,
    together,
)
from dlinfer.interface.declaration import FillQuantisation, Operator, nothing


def _side(
    name: str, states: Tensor, cache: Tensor, scale: Tensor | None, zero: Tensor | None, bits: int
) -> None:
    """Key or value beside its cache."""
    has_rank(name, states, 3)
    has_dtype(name, states)
    size = check_cache(f"{name}_cache", cache, bits, states, name)
    if cache.shape[2] != states.shape[1] or size != states.shape[2]:
        text = (
            f"has {cache.shape[2]} heads of {size} elements, expected {states.shape[1]} of {states.shape[2]}"
        )
        raise wrong(f"{name}_cache", f"{text} like {name}")
    if bits and scale is None:
        raise wrong(f"{name}_scale", f"is missing, expected a scale for a cache of {bits} bits")
    for part, value in (("scale", scale), ("zero", zero)):
        if value is not None:
            check_scale(f"{name}_{part}", value, states.shape[1], states.shape[2], cache)


def _check_fill(
    key: Tensor,
    key_cache: Tensor,
    value: Tensor | None,
    value_cache: Tensor | None,
    kv_indices: Tensor,
    quantisation: FillQuantisation,
) -> None:
    if (
        value is not None
        and value_cache is not None
        and quantisation.absent
        and _fits(key, key_cache, value, value_cache, kv_indices)
    ):
        return
    key_scale, key_zero, value_scale, value_zero, quant_bits = quantisation
    _side("key", key, key_cache, key_scale, key_zero, quant_bits)
    if (value is None) != (value_cache is None):
        missing = "value" if value is None else "value_cache"
        raise wrong(missing, "is missing, expected value and value_cache, or neither")
    for argument, given in (("value_scale", value_scale), ("value_zero", value_zero)):
        if value is None and given is not None:
            raise wrong(argument, "is given without value, expected None where only keys are written")
    if value is not None and value_cache is not None:
        _side("value", value, value_cache, value_scale, value_zero, quant_bits)
        if value.shape[0] != key.shape[0]:
            raise wrong("value", f"has {value.shape[0]} tokens, expected {key.shape[0]} like key")
        if value_cache.shape[:2] != key_cache.shape[:2]:
            raise wrong(
                "value_cache",
                f"has shape {list(value_cache.shape)}, expected the blocks of key_cache, {list(key_cache.shape[:2])}",
            )
    is_vector("kv_indices", kv_indices, key.shape[0], "one slot for each token of key", key)


def _fits(key: Tensor, key_cache: Tensor, value: Tensor, value_cache: Tensor, kv_indices: Tensor) -> bool:
    """The common call at a glance, for it is made by every layer for every token; False: look closely."""
    shape, pages, dtype = key.shape, key_cache.shape, key.dtype
    return (
        len(shape) == 3
        and len(pages) == 4
        and shape[1] == pages[2]
        and shape[2] == pages[3]
        and value.shape == shape
        and value_cache.shape == pages
        and kv_indices.dim() == 1
        and kv_indices.shape[0] == shape[0]
        and dtype in FLOATS
        and key_cache.dtype is value.dtype is value_cache.dtype is dtype
        and kv_indices.dtype in INTEGERS
        and together(key, key_cache, value, value_cache)
        and (kv_indices.is_cpu or kv_indices.device == key.device)
    )


def _fill_values(key_cache: Tensor, kv_indices: Tensor) -> None:
    check_slots(kv_indices, key_cache.shape[0] * key_cache.shape[1])


def _check_append(key_cache: Tensor, value_cache: Tensor, key_state: Tensor, value_state: Tensor) -> None:
    for cache_name, cache, name, state in (
        ("key_cache", key_cache, "key_state", key_state),
        ("value_cache", value_cache, "value_state", value_state),
    ):
        has_rank(cache_name, cache, 4)
        batch, _, heads, size = cache.shape
        has_shape(name, state, [batch, None, heads, size], f"{cache_name} with its own length")
        alike(cache_name, cache, name, state)


def _fake_append(
    key_cache: Tensor, value_cache: Tensor, key_state: Tensor, value_state: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.cat((key_cache, key_state), 1), torch.cat((value_cache, value_state), 1)


def _check_length(cache: Tensor) -> None:
    has_rank("cache", cache, 4)


def _fake_length(cache: Tensor) -> int:
    return cache.shape[1]


_CACHE = "[blocks, block_size, kv_heads, size]; dtype of {}, or int8 or uint8 with 8 bits, or uint8 with 4 bits and size halved"
_SCALE = "floating: 1 element, [kv_heads] or [kv_heads * size]; needed with quant_bits"
_ZERO = "as the scale; 0 if not given"

OPERATORS = (
    Operator(
        name="fill_kv_cache",
        schema="(Tensor key, Tensor(a!) key_cache, Tensor? value, Tensor(b!)? value_cache, Tensor kv_indices,"
        " Tensor? key_scale=None, Tensor? key_zero=None, Tensor? value_scale=None, Tensor? value_zero=None,"
        " int quant_bits=0) -> ()",
        summary="Writes each token into its slot of paged caches; nothing else changes. Slot s is token s % block_size of"
        " block s // block_size; -1 leaves the token out. A quantised element is"
        " round(x / scale + zero), halves to even, clamped to the range of the cache: -128 to 127 (int8), 0 to 255 (uint8),"
        " 0 to 15 (4 bits; byte j has element j in its low and element j + size / 2 in its high half).",
        shapes={
            "key": "[tokens, kv_heads, size], floating",
            "key_cache": "written: " + _CACHE.format("key"),
            "value": "[tokens, kv_heads, value_size], or None: only keys are written",
            "value_cache": "written: " + _CACHE.format("value"),
            "kv_indices": "[tokens], int32 or int64, on the device or on the CPU",
            "key_scale": _SCALE,
            "key_zero": _ZERO,
            "value_scale": _SCALE,
            "value_zero": _ZERO,
            "quant_bits": "0, 8 or 4",
        },
        results="nothing",
        check=_check_fill,
        fake=nothing,
        tolerance="quantised",
        values=_fill_values,
        indices=("kv_indices",),
        # Latent attention: values that are the first part of the keys.
        over={"value_cache": (("value_cache", "key_cache"), ("value", "key"))},
    ),
    Operator(
        name="fill_contiguous_kvcache",
        schema="(Tensor key_cache, Tensor value_cache, Tensor key_state, Tensor value_state) -> (Tensor, Tensor)",
        summary="Caches without pages, longer by the new tokens.",
        shapes={
            "key_cache": "[batch, length, kv_heads, size]",
            "value_cache": "[batch, length, kv_heads, value_size]",
            "key_state": "[batch, new, kv_heads, size]",
            "value_state": "[batch, new, kv_heads, value_size]",
        },
        results="(key_cache, value_cache), [batch, length + new, kv_heads, size]",
        check=_check_append,
        fake=_fake_append,
        tolerance="exact",
    ),
    Operator(
        name="get_cache_len",
        schema="(Tensor cache) -> SymInt",
        summary="How many tokens a cache without pages holds.",
        shapes={"cache": "[batch, length, kv_heads, size]"},
        results="length",
        check=_check_length,
        fake=_fake_length,
        tolerance="exact",
    ),
)
