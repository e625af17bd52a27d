"""The samples of all operators, by name."""

from __future__ import annotations

from dlinfer.conformance.case import SOURCE, Case, Samples
from dlinfer.conformance.drawing import Draw
from dlinfer.conformance.samples import attention, batches, cache, layers, matmul, moe, refused, sparse

__all__ = ["SAMPLES", "SOURCE", "count_of", "describe", "make"]

SAMPLES: dict[str, Samples] = {
    **layers.SAMPLES,
    **cache.SAMPLES,
    **attention.SAMPLES,
    **batches.SAMPLES,
    **sparse.SAMPLES,
    **matmul.SAMPLES,
    **moe.SAMPLES,
}


def count_of(operator: str) -> int:
    """How many cases an operator has; those that must be refused come last."""
    return SAMPLES[operator].count + len(refused.REFUSED.get(operator, ()))


def describe(operator: str, number: int) -> tuple[str, str]:
    """(dtype, label) of a case, without building it."""
    samples = SAMPLES[operator]
    if number < samples.count:
        return samples.described(number)
    argument, _ = refused.REFUSED[operator][number - samples.count]
    return samples.described(0)[0], f"bad {argument}"


def make(operator: str, number: int, seed: int = 0) -> Case:
    """Case number `number` of an operator."""
    samples = SAMPLES[operator]
    identity = f"{SOURCE}:{operator}:{number}"
    dtype, label = describe(operator, number)
    if number >= samples.count:
        argument, spoil = refused.REFUSED[operator][number - samples.count]
        arguments = samples.build(Draw(identity, seed, dtype), samples.described(0)[1])
        spoil(arguments)
        return Case(identity, operator, dtype, label, arguments, frozenset(samples.host), argument)
    arguments = samples.build(Draw(identity, seed, dtype), label)
    # Every other round of dtypes and labels.
    on_host = number // (len(samples.dtypes) * len(samples.labels)) % 2 == 0
    return Case(identity, operator, dtype, label, arguments, frozenset(samples.host if on_host else ()))
