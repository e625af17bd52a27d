"""Steps of LMDeploy padded to sizes that a graph was made for, for backends that prepare each size by itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.nn.functional import pad

__all__ = ["cannot_be_padded", "padded", "padded_size"]

_TOKENS = {"input_ids": (0,), "position_ids": (0,), "mrope_position_ids": (0,), "inputs_embeds": (0, 0, 0)}
"""Arguments with something for each token, and what `pad` gets before the number of tokens: nothing for inner dimensions."""


def _power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n`."""
    return 1 << max(n - 1, 0).bit_length()


def padded_size(n: int) -> int:
    """Few sizes, and little wasted: powers of two up to 16, then multiples of 16 up to 256, then of 256."""
    if n <= 16:
        return _power_of_two(n)
    step = 16 if n <= 256 else 256
    return -(-n // step) * step


def padded(inputs: dict[str, Any], size: int) -> dict[str, Any]:
    """The arguments of a decoding step of `size` sequences, and of a number of blocks that is a power of two.

    What is added computes something that nobody reads: its sequences have no keys, and are written to no slot of the caches.
    Lengths are those on the device: what is recorded must not hold numbers of one step.
    """
    metadata = inputs["attn_metadata"]
    rows = size - metadata.kv_seqlens.shape[0]
    table = metadata.block_offsets
    columns = _power_of_two(table.shape[1])
    ends = torch.arange(size + 1, dtype=metadata.cu_seqlens_q.dtype, device=table.device)
    lengths = pad(metadata.kv_seqlens, (0, rows))
    changed = {
        "block_offsets": pad(table, (0, columns - table.shape[1], 0, rows)),
        "q_start_loc": ends[:-1],
        "q_seqlens": pad(metadata.q_seqlens, (0, rows), value=1),
        "cu_seqlens_q": ends,
        "cu_seqlens_q_cpu": ends,
        "kv_seqlens": lengths,
        "kv_seqlens_cpu": lengths,
        "kv_start_indices": pad(metadata.kv_start_indices, (0, rows), value=-1),
        # The most that the table has room for, not what the longest sequence of this step has.
        "max_kv_seq_len": columns * metadata.block_size,
        "kv_flatten_size": 0,
    }
    result = {**inputs, "attn_metadata": dataclasses.replace(metadata, **changed)}
    for name, before in _TOKENS.items():
        value = inputs.get(name)
        if value is not None:
            result[name] = pad(value, (*before, rows))
    return result


def cannot_be_padded(inputs: dict[str, Any]) -> list[str]:
    """Arguments that some models have and that this file does not know."""
    known = {*_TOKENS, "attn_metadata", "past_key_values"}
    return [name for name, value in inputs.items() if value is not None and name not in known]
