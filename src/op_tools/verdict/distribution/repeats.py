"""Numbers that come again: values that are equal more often than by chance, and stretches of values that occur twice.

All elements are looked at. Stretches are told apart by a hash of their bits; where there are many, those with certain hashes are
kept, so that all copies of a stretch are kept or none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from op_tools.verdict.distribution.evidence import Statistic, excess_nats

# A right generator may have so few different values of float32: some draw 23 random bits.
LEAST_DIFFERENT = 2**-22
# Stretches are hashed in pieces of this many values, and so many hashes are compared.
PIECE, MOST_HASHES = 1 << 20, 1 << 16
LONGEST_STRETCH = 1 << 13
# Twice as many coincidences as expected are allowed: generators differ in how they round.
ALLOWED = 2.0
# Of values that are equal this often, the distribution function says as much.
MOST_SAME = 0.1
_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def equal_values(values: Tensor, sample: Tensor, same: float, most_likely: float) -> Iterator[Statistic]:
    """Neighbours among all values, and values of a sample, that are equal; two draws are with probability `same`."""
    bits, count = _bits(values), values.numel()
    if count < 2 or same >= MOST_SAME:
        return
    equal = int((bits[1:] == bits[:-1]).sum())
    text = f"{equal} of {count} values equal the one before"
    # Neighbouring pairs share a value: every second of them is independent.
    yield Statistic("neighbours", excess_nats(equal / 2, ALLOWED * same * count / 2) - math.log(2), text)
    yield from _coincidences(_bits(sample), same, most_likely)


def _bits(values: Tensor) -> Tensor:
    if values.dtype == torch.bool:
        return values.view(torch.uint8)
    return values.contiguous().view(_WHOLE[values.element_size()])


def fingerprint(values: Tensor) -> int:
    """The same number for the same values."""
    return hash(_bits(values).cpu().numpy().tobytes())


def _coincidences(bits: Tensor, same: float, most_likely: float) -> Iterator[Statistic]:
    """Pairs of equal values, all against all, and the value that comes most often."""
    count = bits.numel()
    ranked = bits.sort().values
    edges = (ranked[1:] != ranked[:-1]).nonzero().view(-1) + 1
    ends = torch.cat([edges, edges.new_tensor([count])])
    sizes = torch.diff(ends, prepend=ends.new_zeros(1)).double()
    pairs = float((sizes * (sizes - 1)).sum()) / 2
    expected = ALLOWED * same * count * (count - 1) / 2
    text = f"only {sizes.numel()} of {count} values are different"
    # A value that came k times makes k (k - 1) / 2 pairs by k - 1 accidents.
    nats = excess_nats(pairs, expected) / float(sizes.max())
    yield Statistic("coincidences", nats - math.log(2), text)
    if most_likely < MOST_SAME:
        often = int(sizes.max())
        text = f"one value comes {often} times in {count} draws"
        # The first time may be any of the draws; the others come by chance.
        nats = excess_nats(often - 1, ALLOWED * most_likely * count) - math.log(2 * count)
        yield Statistic("coincidences", nats, text)


def stretch_length(count: int, most_likely: float) -> int | None:
    """A power of two: stretches of that length are equal by chance with a probability that counts for nothing."""
    if count < 2 or not 0 < most_likely < 1:
        return None
    needed = (2 * math.log(count) + math.log(1e12)) / -math.log(max(most_likely, LEAST_DIFFERENT))
    length = 1 << max(0, math.ceil(math.log2(needed)))
    return length if length <= LONGEST_STRETCH and 2 * length <= count else None


def stretches(values: Tensor, most_likely: float) -> Iterator[Statistic]:
    """Stretches that occur twice, at any distance."""
    count = values.numel()
    length = stretch_length(count, most_likely)
    if length is None:
        return
    bits = _bits(values)
    dropped = max(0, math.ceil(math.log2(count / MOST_HASHES)))
    kept, starts = [], []
    for start in range(0, count - length + 1, PIECE):
        hashes = _hashes(bits[start : start + PIECE + length - 1], length)
        chosen = (_mixed(hashes) >> (63 - dropped) == 0).nonzero().view(-1) if dropped else slice(None)
        kept.append(hashes[chosen])
        starts.append(torch.arange(start, start + hashes.numel(), device=bits.device)[chosen])
    ranked, order = torch.cat(kept).sort()
    again = (ranked[1:] == ranked[:-1]).nonzero().view(-1)
    if again.numel():
        first, second = torch.cat(starts)[order[again[0] : again[0] + 2]].tolist()
        if torch.equal(bits[first : first + length], bits[second : second + length]):
            text = f"the {length} values from {min(first, second)} on come again from {max(first, second)} on"
            yield Statistic("repeats", math.inf, text)


def _hashes(bits: Tensor, length: int) -> Tensor:
    """A hash of every stretch: that of a double one from those of its halves."""
    hashes, width, factor = _mixed(bits.long()), 1, _FACTOR
    while width < length:
        hashes = (hashes[:-width] * factor).add_(hashes[width:])
        width, factor = 2 * width, _wrapped(factor * factor)
    return hashes


def _mixed(values: Tensor) -> Tensor:
    values = values * _FACTOR
    return (values ^ (values >> 29)).mul_(_FACTOR)


def _wrapped(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
