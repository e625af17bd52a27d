"""Sampling that follows the seed of a request: LMDeploy's draw for devices other than cuda leaves the seed out."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

__all__ = ["draw", "follow_seeds"]

# Weyl's step and the two factors of the mixing function splitmix64, as signed numbers of 64 bits.
_STEP, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685


@functools.cache
def follow_seeds() -> None:
    """Let LMDeploy's engines of this process draw so."""
    from lmdeploy.pytorch.backends.default.multinomial_sampling import DefaultMultinomialSamplingImpl

    def forward(
        self: Any, scores: Tensor, seeds: Tensor, offsets: Tensor, indices: Tensor | None = None
    ) -> Tensor:
        chosen = draw(scores, seeds, offsets)
        return chosen if indices is None else indices.gather(1, chosen[:, None])[:, 0]

    DefaultMultinomialSamplingImpl.forward = forward


def draw(scores: Tensor, seeds: Tensor, offsets: Tensor) -> Tensor:
    """One place of each row, by probability. The same seed and offset draw the same, whatever the other rows are."""
    ends = scores.double().cumsum(-1)
    marks = (_numbers(seeds, offsets) * ends[:, -1])[:, None]
    # On the right of equal ends: a place of probability 0 is never chosen.
    return torch.searchsorted(ends, marks, right=True).clamp_(max=scores.shape[1] - 1)[:, 0]


def _numbers(seeds: Tensor, offsets: Tensor) -> Tensor:
    """A number in [0, 1) for each pair. An offset is the number of a draw, so seeds are mixed before it is added."""
    bits = _mixed(_mixed(seeds.to(torch.int64)) + offsets.to(torch.int64) * _STEP)
    return _right(bits, 11).double() * 2.0**-53


def _mixed(bits: Tensor) -> Tensor:
    bits = bits + _STEP
    bits = (bits ^ _right(bits, 30)) * _FIRST
    bits = (bits ^ _right(bits, 27)) * _SECOND
    return bits ^ _right(bits, 31)


def _right(bits: Tensor, places: int) -> Tensor:
    """A shift that brings in zeros; torch's own brings in the sign."""
    return (bits >> places) & ((1 << (64 - places)) - 1)
