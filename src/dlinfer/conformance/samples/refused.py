"""Cases that must be refused: by operator the argument that is made wrong, and how."""

from __future__ import annotations

from collections.abc import Callable

from dlinfer.conformance.case import Arguments

Spoiler = Callable[[Arguments], None]


def _set(name: str, place: int, value: int) -> Spoiler:
    def spoil(arguments: Arguments) -> None:
        arguments[name] = arguments[name].clone()
        arguments[name].view(-1)[place] = value

    return spoil


def _times(name: str, factor: int) -> Spoiler:
    def spoil(arguments: Arguments) -> None:
        arguments[name] = arguments[name] * factor

    return spoil


_TABLE: tuple[tuple[str, Spoiler], ...] = (
    ("block_table", _set("block_table", 0, 10**6)),
    ("block_table", _set("block_table", 0, -7)),
    ("kv_lengths", _times("kv_lengths", 1000)),
    ("kv_lengths", _set("kv_lengths", 0, -1)),
)
_ENDS: tuple[tuple[str, Spoiler], ...] = (
    ("cu_seqlens_q", _times("cu_seqlens_q", 2)),
    ("cu_seqlens_q", _set("cu_seqlens_q", -1, 0)),
)

REFUSED: dict[str, tuple[tuple[str, Spoiler], ...]] = {
    "fill_kv_cache": (
        ("kv_indices", _set("kv_indices", 0, 10**6)),
        ("kv_indices", _set("kv_indices", 0, -2)),
    ),
    "prefill_attention": (
        *_ENDS,
        ("kv_lengths", _times("kv_lengths", 3)),
        ("kv_lengths", _set("kv_lengths", 0, -1)),
    ),
    "paged_prefill_attention": (*_TABLE, *_ENDS),
    "paged_decode_attention": _TABLE,
    "lightning_indexer": (*_TABLE, *_ENDS),
    "sparse_flash_attention": (*_TABLE, *_ENDS),
    "fused_moe": (("topk_ids", _set("topk_ids", 0, 99)), ("topk_ids", _set("topk_ids", 0, -1))),
    "fused_moe_w8a8": (("topk_ids", _set("topk_ids", 0, 99)), ("topk_ids", _set("topk_ids", 0, -1))),
}
