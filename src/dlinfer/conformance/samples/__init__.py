"""The samples of all operators, by name; among them calls that must be refused."""

from __future__ import annotations

from collections.abc import Callable

from dlinfer.conformance.samples import attention, cache, layers, matmul, moe, sparse
from dlinfer.conformance.sampling import SOURCE, Arguments, Case, Draw, Samples

__all__ = ["SAMPLES", "SOURCE", "count_of", "describe", "make"]

SAMPLES: dict[str, Samples] = {
    **layers.SAMPLES,
    **cache.SAMPLES,
    **attention.SAMPLES,
    **sparse.SAMPLES,
    **matmul.SAMPLES,
    **moe.SAMPLES,
}

Spoiler = Callable[[Arguments], None]


def _set(name: str, index: int, value: int) -> Spoiler:
    def spoil(arguments: Arguments) -> None:
        arguments[name] = arguments[name].clone()
        arguments[name].view(-1)[index] = value

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
_CU_SEQLENS: tuple[tuple[str, Spoiler], ...] = (
    ("cu_seqlens_q", _times("cu_seqlens_q", 2)),
    ("cu_seqlens_q", _set("cu_seqlens_q", -1, 0)),
)

# By operator the argument that is made wrong, and how.
REFUSED: dict[str, tuple[tuple[str, Spoiler], ...]] = {
    "fill_kv_cache": (
        ("kv_indices", _set("kv_indices", 0, 10**6)),
        ("kv_indices", _set("kv_indices", 0, -2)),
    ),
    "prefill_attention": (
        *_CU_SEQLENS,
        ("kv_lengths", _times("kv_lengths", 3)),
        ("kv_lengths", _set("kv_lengths", 0, -1)),
    ),
    "paged_prefill_attention": (*_TABLE, *_CU_SEQLENS),
    "paged_decode_attention": _TABLE,
    "lightning_indexer": (*_TABLE, *_CU_SEQLENS),
    "sparse_flash_attention": (*_TABLE, *_CU_SEQLENS),
    "fused_moe": (("topk_ids", _set("topk_ids", 0, 99)), ("topk_ids", _set("topk_ids", 0, -1))),
    "fused_moe_w8a8": (("topk_ids", _set("topk_ids", 0, 99)), ("topk_ids", _set("topk_ids", 0, -1))),
}


def count_of(operator: str) -> int:
    """How many cases an operator has; those that must be refused come last."""
    return SAMPLES[operator].count + len(REFUSED.get(operator, ()))


def describe(operator: str, number: int) -> tuple[str, str]:
    """(dtype, label) of a case, without building it."""
    samples = SAMPLES[operator]
    if number < samples.count:
        return samples.described(number)
    argument, _ = REFUSED[operator][number - samples.count]
    return samples.described(0)[0], f"bad {argument}"


def make(operator: str, number: int, seed: int = 0) -> Case:
    """Case number `number` of an operator."""
    samples = SAMPLES[operator]
    identity = f"{SOURCE}:{operator}:{number}"
    dtype, label = describe(operator, number)
    if number >= samples.count:
        argument, spoil = REFUSED[operator][number - samples.count]
        arguments = samples.build(Draw(identity, seed, dtype), samples.described(0)[1])
        spoil(arguments)
        return Case(identity, operator, dtype, label, arguments, frozenset(samples.host), argument)
    arguments = samples.build(Draw(identity, seed, dtype), label)
    # Every other round of dtypes and labels.
    on_host = number // (len(samples.dtypes) * len(samples.labels)) % 2 == 0
    return Case(identity, operator, dtype, label, arguments, frozenset(samples.host if on_host else ()))
