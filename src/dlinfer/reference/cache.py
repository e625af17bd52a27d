"""Writing keys and values into caches."""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.interface.declaration import FillQuantisation
from dlinfer.interface.kernels import reference
from dlinfer.reference.quantisation import stored


@reference("fill_kv_cache")
def fill_kv_cache(
    key: Tensor,
    key_cache: Tensor,
    value: Tensor | None,
    value_cache: Tensor | None,
    kv_indices: Tensor,
    quantisation: FillQuantisation,
) -> None:
    slots = kv_indices.to(key.device, torch.int64)
    used = slots >= 0
    if not bool(used.all()):
        slots, key = slots[used], key[used]
        value = None if value is None else value[used]
    key_scale, key_zero, value_scale, value_zero, bits = quantisation
    _write(key, key_cache, slots, key_scale, key_zero, bits)
    if value is not None and value_cache is not None:
        _write(value, value_cache, slots, value_scale, value_zero, bits)


def _write(
    states: Tensor, cache: Tensor, slots: Tensor, scale: Tensor | None, zero: Tensor | None, bits: int
) -> None:
    if bits and scale is not None:
        states = stored(states, scale, zero, bits, cache.dtype)
    block_size = cache.shape[1]
    cache[slots // block_size, slots % block_size] = states


@reference("fill_contiguous_kvcache")
def fill_contiguous_kvcache(
    key_cache: Tensor, value_cache: Tensor, key_state: Tensor, value_state: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.cat((key_cache, key_state), 1), torch.cat((value_cache, value_state), 1)


@reference("get_cache_len")
def get_cache_len(cache: Tensor) -> int:
    return cache.shape[1]
