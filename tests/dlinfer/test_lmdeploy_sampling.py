"""Draws that follow the seed of a request."""

from __future__ import annotations

import pytest
import torch

from dlinfer.framework.lmdeploy.generation import draw

pytestmark = pytest.mark.unit


def test_a_seed_draws_the_same_whatever_stands_beside_it() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(64, 1000, generator=generator).softmax(-1)
    seeds, offsets = torch.randint(-(2**63), 2**63 - 1, (64,), generator=generator), torch.arange(64)
    together = draw(scores, seeds, offsets)
    alone = torch.cat([draw(scores[i : i + 1], seeds[i : i + 1], offsets[i : i + 1]) for i in range(64)])
    wider = draw(torch.nn.functional.pad(scores, (0, 24)), seeds, offsets)
    assert torch.equal(together, alone) and torch.equal(together, wider)
    assert (draw(scores, seeds + 1, offsets) != together).float().mean() > 0.9
    assert (draw(scores, seeds, offsets + 1) != together).float().mean() > 0.9


@pytest.mark.parametrize("varied", ["seed", "offset", "both in step"])
def test_draws_follow_the_probabilities(varied: str) -> None:
    """Also for neighbouring seeds and offsets, which is what users write and engines count."""
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05, 0.0])
    draws, still = torch.arange(40_000), torch.full((40_000,), 7)
    seeds, offsets = {"seed": (draws, still), "offset": (still, draws), "both in step": (draws, -draws)}[
        varied
    ]
    counts = draw(probabilities.expand(40_000, 6), seeds, offsets).bincount(minlength=6)
    expected = probabilities * 40_000
    assert ((counts - expected).abs() <= 4 * (expected * (1 - probabilities)).sqrt()).all(), counts
    pairs = draw(probabilities.expand(40_000, 6), seeds, offsets)
    follows = ((pairs[1:] == 0) & (pairs[:-1] == 0)).float().mean()
    assert abs(float(follows) - 0.25) < 0.01  # one draw says nothing about the next
