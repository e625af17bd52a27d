"""The corpus that the verdict is measured on: what it holds, and a slice of the measurement itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def detection() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import verdict_detection
    finally:
        sys.path.remove(str(BENCHMARKS))
    return verdict_detection


def test_the_corpus_is_as_wide_as_promised(detection: Any) -> None:
    names = {subject.name.removesuffix(" gradient") for subject in detection.SUBJECTS}
    gradients = [subject for subject in detection.SUBJECTS if subject.wants_grad is not None]
    overloads = [s for s in detection.SUBJECTS if isinstance(s.func, torch._ops.OpOverload)]
    assert len(names) >= 60 and len(gradients) >= 25 and len(overloads) >= 15
    assert len(detection.ALL_REGIMES) == 5 and len(detection.DTYPES) == 3
    assert detection.HELD_OUT not in detection.DEVELOPMENT


def test_every_right_variant_is_near_the_exact_result(detection: Any) -> None:
    for position, subject in enumerate(detection.SUBJECTS):
        case = detection.Case(subject, "normal", torch.float32, 100 + position)
        truth = case.reference.truth()
        for name, results in detection.right_results(case, torch.Generator().manual_seed(0)):
            for value, exact in zip(results, truth, strict=True):
                assert value.shape == exact.shape, (subject.name, name)
                assert float(detection.units_off(value, exact).median()) < 50, (subject.name, name)


def test_a_slice_accuses_no_right_result_and_finds_lost_blocks(detection: Any) -> None:
    found = detection.run("cpu", 1, "^softmax$", share=0.3)["found"]
    right = detection.together(found["right"])
    assert right.count == 105 and right.statuses["fail"] == 0
    lost = found["wrong"]["dropped last block"]
    assert lost.count > 0 and lost.statuses["fail"] == lost.count
    printed = "\n".join(
        detection.lines({"device": "cpu", "seed": 1, "operators": 1, "seconds": 0, "found": found})
    )
    assert "wrong by more than 2 ulp" in printed and "dropped last block" in printed
