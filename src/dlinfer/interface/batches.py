"""Declarations: attention over batches whose sequences are equally long and whose caches have no pages."""

from __future__ import annotations

from torch import Tensor

from dlinfer.interface.checks import finite, has_dtype, has_rank, has_shape, same_device, same_dtype, wrong
from dlinfer.interface.declaration import Operator
from dlinfer.interface.sequences import MASKS, check_heads

_INCREMENT = "incre_flash_attention"
_FUSED = "fused_attention"
LAYOUTS = ("BSH", "BSND", "BNSD")


def _check_increment(
    query: Tensor, key: Tensor, value: Tensor, num_heads: int, input_layout: str, softmax_scale: float
) -> None:
    if input_layout not in LAYOUTS:
        raise wrong(_INCREMENT, "input_layout", f"is {input_layout!r}, expected one of {', '.join(LAYOUTS)}")
    has_dtype(_INCREMENT, "query", query)
    finite(_INCREMENT, "softmax_scale", softmax_scale)
    rank = 3 if input_layout == "BSH" else 4
    for argument, tensor in (("query", query), ("key", key), ("value", value)):
        has_rank(_INCREMENT, argument, tensor, rank)
        same_dtype(_INCREMENT, "query", query, argument, tensor)
        same_device(_INCREMENT, "query", query, argument, tensor)
        if tensor.shape[0] != query.shape[0]:
            raise wrong(
                _INCREMENT, argument, f"has batch {tensor.shape[0]}, expected {query.shape[0]} like query"
            )
    heads = num_heads if input_layout == "BSH" else query.shape[2 if input_layout == "BSND" else 1]
    if num_heads <= 0 or heads != num_heads or query.shape[-1] % num_heads * (rank == 3):
        raise wrong(_INCREMENT, "num_heads", f"is {num_heads}, which does not fit query {list(query.shape)}")
    size = query.shape[-1] // num_heads if rank == 3 else query.shape[-1]
    if not size and rank == 3:
        raise wrong(
            _INCREMENT, "query", f"has shape {list(query.shape)}, expected heads of at least 1 element"
        )
    if key.shape[-1] % size if rank == 3 else key.shape[-1] != size:
        raise wrong(
            _INCREMENT, "key", f"has shape {list(key.shape)}, expected heads of {size} elements like query"
        )
    kv_heads = key.shape[-1] // size if rank == 3 else key.shape[2 if input_layout == "BSND" else 1]
    check_heads(_INCREMENT, num_heads, kv_heads, "key")
    if value.shape[:-1] != key.shape[:-1] or (rank == 3 and value.shape[-1] % kv_heads):
        raise wrong(
            _INCREMENT, "value", f"has shape {list(value.shape)}, expected batch, length and heads of key"
        )


def _fake_increment(query: Tensor, key: Tensor, value: Tensor, num_heads: int, input_layout: str) -> Tensor:
    if input_layout == "BSH":
        size = query.shape[-1] // num_heads
        last = value.shape[-1] // (key.shape[-1] // size) * num_heads
    else:
        last = value.shape[-1]
    return query.new_empty([*query.shape[:-1], last])


def _check_fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    has_rank(_FUSED, "query", query, 4)
    has_dtype(_FUSED, "query", query)
    batch, length, heads, size = query.shape
    has_shape(_FUSED, "key", key, [batch, None, None, size], "batch and head size of query")
    has_shape(
        _FUSED, "value", value, [batch, key.shape[1], key.shape[2], None], "batch, length and heads of key"
    )
    for argument, tensor in (("key", key), ("value", value)):
        same_dtype(_FUSED, "query", query, argument, tensor)
        same_device(_FUSED, "query", query, argument, tensor)
    check_heads(_FUSED, heads, key.shape[2])
    if key.shape[1] < length and mask is None:
        raise wrong(_FUSED, "key", f"has {key.shape[1]} tokens, expected at least the {length} of query")
    if mask is not None:
        has_dtype(_FUSED, "mask", mask, MASKS)
        same_device(_FUSED, "query", query, "mask", mask)
        if mask.shape[-2:] != (length, key.shape[1]) or (mask.dim() == 3 and mask.shape[0] not in (1, batch)):
            raise wrong(
                _FUSED,
                "mask",
                f"has shape {list(mask.shape)}, expected [{batch} or 1, {length}, {key.shape[1]}] for query and key",
            )
        has_rank(_FUSED, "mask", mask, 3)


def _fake_fused(query: Tensor, value: Tensor) -> Tensor:
    return query.new_empty([*query.shape[:-1], value.shape[-1]])


OPERATORS = (
    Operator(
        name=_INCREMENT,
        schema="(Tensor query, Tensor key, Tensor value, int num_heads, str input_layout, float softmax_scale) -> Tensor",
        summary="Attention of new tokens over whole caches without pages; every key is visible.",
        shapes={
            "query": "BSH: [batch, new, heads * size]; BSND: [batch, new, heads, size]; BNSD: [batch, heads, new, size]",
            "key": "the same with its own length and kv_heads",
            "value": "like key, perhaps with another head size",
            "num_heads": "heads of query",
            "input_layout": "BSH, BSND or BNSD, for all of them",
            "softmax_scale": "factor of the scores, which are computed in float32; weights may be rounded to the dtype of query",
        },
        results="like query, with the size of value heads",
        check=_check_increment,
        fake=_fake_increment,
        tolerance="sum",
    ),
    Operator(
        name=_FUSED,
        schema="(Tensor query, Tensor key, Tensor value, Tensor? mask=None) -> Tensor",
        summary="Attention of a batch of equal lengths; scores are divided by sqrt(size). Without a mask a query sees keys up to"
        " its own place, counted from the last key.",
        shapes={
            "query": "[batch, length, heads, size], floating",
            "key": "[batch, kv_length, kv_heads, size]",
            "value": "[batch, kv_length, kv_heads, value_size]",
            "mask": "[batch or 1, length, kv_length]: bool, true hides a key; or floating, added to the scores",
        },
        results="[batch, length, heads, value_size]",
        check=_check_fused,
        fake=_fake_fused,
        tolerance="sum",
    ),
)
