"""Declarations: rotary position embedding, of halves and of adjacent pairs."""

from __future__ import annotations

from torch import Tensor

from dlinfer.interface.checks import FLOATS, has_dtype, has_shape, same_device, same_dtype, wrong
from dlinfer.interface.declaration import Operator

_HALVES = "apply_rotary_pos_emb"
_PAIRS = "apply_rotary_pos_emb_interleaved"


def _table(name: str, cos: Tensor, sin: Tensor, of: str, like: Tensor, rows: int, size: int) -> None:
    """cos and sin hold one row for each token of `like`, the argument `of`, in any shape [..., rotary]."""
    for argument, table in (("cos", cos), ("sin", sin)):
        has_dtype(name, argument, table)
        same_device(name, of, like, argument, table)
        rotary = table.shape[-1] if table.dim() else 0
        if not rotary or rotary % 2 or rotary > size:
            raise wrong(
                name,
                argument,
                f"has shape {list(table.shape)}, expected an even last dimension of at most {size}, the head size of {of}",
            )
        if table.numel() != rows * rotary:
            raise wrong(
                name,
                argument,
                f"has shape {list(table.shape)}, expected [{rows}, rotary]: one row for each token of {of}",
            )
    if cos.shape[-1] != sin.shape[-1]:
        raise wrong(name, "sin", f"has {sin.shape[-1]} columns, expected {cos.shape[-1]} like cos")


def _fits(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """The common call at a glance, for it is made by every layer for every token; False: look closely."""
    shape, others, table, dtype, device = query.shape, key.shape, cos.shape, query.dtype, query.device
    return (
        len(shape) == len(others) == 3
        and len(table) == 2
        and shape[0] == others[0] == table[0]
        and shape[2] == others[2] == table[1]
        and sin.shape == table
        and shape[2] > 0
        and shape[2] % 2 == 0
        and dtype in FLOATS
        and key.dtype is dtype
        and cos.dtype in FLOATS
        and sin.dtype in FLOATS
        and key.device == cos.device == sin.device == device
    )


def _check_rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> None:
    if _fits(query, key, cos, sin):
        return
    has_dtype(_HALVES, "query", query)
    if query.dim() < 3:
        raise wrong(_HALVES, "query", f"has shape {list(query.shape)}, expected [..., heads, head_size]")
    has_shape(_HALVES, "key", key, [*query.shape[:-2], None, query.shape[-1]], "query with its own heads")
    same_dtype(_HALVES, "query", query, "key", key)
    same_device(_HALVES, "query", query, "key", key)
    rows = query.shape[:-2].numel()
    _table(_HALVES, cos, sin, "query", query, rows, query.shape[-1])


def _fake_rotary(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape)


def _check_interleaved(states: Tensor, cos: Tensor, sin: Tensor) -> None:
    has_dtype(_PAIRS, "states", states)
    if states.dim() < 2:
        raise wrong(_PAIRS, "states", f"has shape {list(states.shape)}, expected [tokens, ..., size]")
    _table(_PAIRS, cos, sin, "states", states, states.shape[0], states.shape[-1])
    if cos.shape[-1] != states.shape[-1]:
        raise wrong(_PAIRS, "cos", f"has {cos.shape[-1]} columns, expected {states.shape[-1]} like states")


def _fake_interleaved(states: Tensor) -> Tensor:
    return states.new_empty(states.shape)


_TABLE = (
    "one row for each token, last dimension rotary: the angles' {} twice, [f0 .. fn, f0 .. fn]; any float"
)

OPERATORS = (
    Operator(
        name=_HALVES,
        schema="(Tensor query, Tensor key, Tensor cos, Tensor sin) -> (Tensor, Tensor)",
        summary="Rotary embedding of the first `rotary` elements of each head, element i paired with i + rotary / 2;"
        " elements behind them are copied.",
        shapes={
            "query": "[..., heads, head_size], floating; all in front of heads are tokens",
            "key": "[..., kv_heads, head_size], the same tokens",
            "cos": _TABLE.format("cosines"),
            "sin": _TABLE.format("sines"),
        },
        results="(query, key), new tensors",
        check=_check_rotary,
        fake=_fake_rotary,
        tolerance="elementwise",
    ),
    Operator(
        name=_PAIRS,
        schema="(Tensor states, Tensor cos, Tensor sin, bool native_layout=True) -> Tensor",
        summary="Rotary embedding of adjacent pairs: element 2i is paired with 2i + 1. With native_layout the result has"
        " all first elements of the pairs, then all second ones; without, pairs stay where they were.",
        shapes={
            "states": "[tokens, ..., size], floating; size is even",
            "cos": _TABLE.format("cosines"),
            "sin": _TABLE.format("sines"),
            "native_layout": "halves instead of pairs in the result",
        },
        results="like states",
        check=_check_interleaved,
        fake=_fake_interleaved,
        tolerance="elementwise",
    ),
)
