"""Cuts a list of tasks into batches of similar size: few enough to send, small enough to lose one."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["BATCHES_PER_WORKER", "ITEM_COST", "LARGEST_BATCH", "batches_of", "target_of"]

BATCHES_PER_WORKER = 4
LARGEST_BATCH = 64 << 20
# What a task costs beside its bytes (opening files, the call itself), in bytes: empty ones are work too.
ITEM_COST = 64 << 10


def target_of(weights: Sequence[int], workers: int) -> int:
    """The cost that a batch of more than one task may have."""
    total = sum(weights) + ITEM_COST * len(weights)
    return min(LARGEST_BATCH, -(-total // (BATCHES_PER_WORKER * max(1, workers))))


def batches_of(weights: Sequence[int], workers: int) -> list[list[int]]:
    """Batches of indices: neighbours together, what is larger than a batch alone and first, so that it ends in time."""
    target = target_of(weights, workers)
    large: list[list[int]] = []
    batches: list[list[int]] = []
    filled = target  # the first one opens a batch
    for index, weight in enumerate(weights):
        cost = weight + ITEM_COST
        if cost >= target:
            large.append([index])
            continue
        if filled + cost > target:
            batches.append([])
            filled = 0
        batches[-1].append(index)
        filled += cost
    return sorted(large, key=lambda batch: -weights[batch[0]]) + batches
