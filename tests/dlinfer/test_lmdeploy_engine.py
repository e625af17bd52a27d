"""LMDeploy's PyTorch engine from PyPI on dlinfer's operators: the tokens of transformers, in every way that it batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_runs import BLOCK, CHUNK, LONG, NEW_TOKENS, PROMPTS, Greedy, greedy_of_transformers, run_engine

pytest.importorskip("lmdeploy", reason="needs requirements/lmdeploy.txt")
pytestmark = [pytest.mark.unit, pytest.mark.slow, pytest.mark.timeout(900)]

MODES = {"eager": {"eager_mode": True}}
Runs = dict[str, Any]
BATCH = 8


@pytest.fixture(scope="module")
def folder() -> Path:
    from dlinfer.checkpoints import smollm2

    return smollm2.folder()


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, Greedy]:
    return greedy_of_transformers(folder)


@pytest.fixture(scope="module", params=MODES)
def runs(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """All prompts at once, then each alone, in one engine."""
    scratch = tmp_path_factory.mktemp(request.param)
    rounds = [list(PROMPTS), *([prompt] for prompt in PROMPTS)]
    return run_engine(folder, scratch, rounds, **MODES[request.param])


def test_batches_of_eight(runs: Runs, expected: dict[str, Greedy]) -> None:
    together = runs["rounds"][0]
    _check(together["answers"], PROMPTS, expected)
    sizes = [len(new) for decoding, new, _ in together["steps"] if decoding]
    assert max(sizes) == BATCH
    assert sizes.count(BATCH) >= NEW_TOKENS  # sequences come and go, and most steps are full


def test_one_after_the_other(runs: Runs, expected: dict[str, Greedy]) -> None:
    alone = runs["rounds"][1:]
    for prompt, found in zip(PROMPTS, alone, strict=True):
        _check(found["answers"], [prompt], expected)
        assert all(len(new) == 1 for _, new, _ in found["steps"])


def test_float32_on_the_cpu(runs: Runs) -> None:
    assert (runs["place"], runs["dtype"]) == ("cpu", "torch.float32")


def test_long_prompts_are_prefilled_in_chunks(runs: Runs, expected: dict[str, Greedy]) -> None:
    prefills = [
        (new, keys) for decoding, lengths, all_keys in runs["rounds"][0]["steps"] if not decoding
        for new, keys in zip(lengths, all_keys, strict=True)
    ]  # fmt: skip
    assert max(new for new, _ in prefills) <= CHUNK
    length = expected[LONG[0]].length
    assert length > 2 * CHUNK
    # The parts of one prompt: a first one without keys before it, one in the middle, and one that ends the prompt.
    assert (CHUNK, CHUNK) in prefills
    assert (CHUNK, 2 * CHUNK) in prefills
    assert (length - 2 * CHUNK, length) in prefills


def test_prefixes_are_reused(runs: Runs, expected: dict[str, Greedy]) -> None:
    for prompt, found in zip(PROMPTS, runs["rounds"][1:], strict=True):
        (answer,) = found["answers"]
        # It was answered before, so all of its full blocks are there, but for the last token, which must be computed.
        reused = (expected[prompt].length - 1) // BLOCK * BLOCK
        assert answer["cached"] == reused
        decoding, new, keys = found["steps"][0]
        assert not decoding
        assert keys[0] - new[0] >= reused


def _check(answers: list[dict[str, Any]], prompts: Any, expected: dict[str, Greedy]) -> None:
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer["length"] == expected[prompt].length
        assert answer["tokens"] == expected[prompt].tokens, prompt
        assert len(answer["tokens"]) == NEW_TOKENS
