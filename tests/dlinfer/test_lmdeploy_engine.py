"""LMDeploy's PyTorch engine from PyPI on dlinfer's operators: the tokens of transformers, in every way that it batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engine_runs import (
    BLOCK,
    CHUNK,
    LONG,
    NEW_TOKENS,
    PROMPTS,
    SHORT,
    Greedy,
    greedy_of_transformers,
    run_engine,
    run_program,
    run_python,
)

pytest.importorskip("lmdeploy", reason="needs requirements/lmdeploy.txt")
pytestmark = [pytest.mark.unit, pytest.mark.slow, pytest.mark.timeout(900)]

MODES = {"eager": {"eager_mode": True}, "graph": {"eager_mode": False}}
# Alone a prompt takes its full time, so in the second mode every other one has to do. The last one is long.
ALONE = {"eager": PROMPTS, "graph": PROMPTS[1::2]}
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
    rounds = [list(PROMPTS), *([prompt] for prompt in ALONE[request.param])]
    return {"alone": ALONE[request.param], **run_engine(folder, scratch, rounds, **MODES[request.param])}


def test_batches_of_eight(runs: Runs, expected: dict[str, Greedy]) -> None:
    together = runs["rounds"][0]
    _check(together["answers"], PROMPTS, expected)
    sizes = [len(new) for decoding, new, _ in together["steps"] if decoding]
    assert max(sizes) == BATCH
    assert sizes.count(BATCH) >= NEW_TOKENS  # sequences come and go, and most steps are full


def test_one_after_the_other(runs: Runs, expected: dict[str, Greedy]) -> None:
    alone = runs["rounds"][1:]
    for prompt, found in zip(runs["alone"], alone, strict=True):
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
    for prompt, found in zip(runs["alone"], runs["rounds"][1:], strict=True):
        (answer,) = found["answers"]
        # It was answered before, so all of its full blocks are there, but for the last token, which must be computed.
        reused = (expected[prompt].length - 1) // BLOCK * BLOCK
        assert answer["cached"] == reused
        decoding, new, keys = found["steps"][0]
        assert not decoding
        assert keys[0] - new[0] >= reused


@pytest.fixture(scope="module")
def on_dipu(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Some prompts on dipu, and then the engine meets an error and is asked once more."""
    rounds = [[SHORT[0], SHORT[5], LONG[2]], [SHORT[0], SHORT[1]], [SHORT[2]]]
    scratch = tmp_path_factory.mktemp("dipu")
    environment = {"DLINFER_DEVICE": "dipu"}
    return run_engine(folder, scratch, rounds, environment=environment, new_tokens=16, failing_round=1)


@pytest.mark.device
def test_the_same_tokens_on_dipu(on_dipu: Runs, expected: dict[str, Greedy]) -> None:
    assert on_dipu["place"] == "dipu:0"
    for prompt, answer in zip((SHORT[0], SHORT[5], LONG[2]), on_dipu["rounds"][0]["answers"], strict=True):
        assert answer["tokens"] == expected[prompt].tokens[:16], prompt


@pytest.mark.device
def test_an_error_of_an_operator_ends_the_requests(on_dipu: Runs) -> None:
    """It is in the log by name, and nobody waits for an answer that will not come."""
    assert "dlinfer.paged_decode_attention: block_table: was broken by a test" in on_dipu["log"]
    _, failed, later = on_dipu["rounds"]
    assert [answer["finish"] for answer in failed["answers"]] == ["error", "error"]
    assert [answer["finish"] for answer in later["answers"]] == ["error"]


@pytest.mark.parametrize(
    ("environment", "engine", "message"),
    [
        ({"DLINFER_DEVICE": "gpu"}, {}, "'gpu' is no place for tensors. Expected one of: cpu, dipu, cuda"),
        ({}, {"tp": 2}, "tp=2, dp=1, ep=1 ask for 2 processes"),
    ],
    ids=["unknown place", "two ranks"],
)
def test_wrong_use_ends_the_program_with_the_reason(
    folder: Path, tmp_path: Path, environment: dict[str, str], engine: dict[str, Any], message: str
) -> None:
    task = {"model": str(folder), "engine": {"device_type": "ascend", **engine}, "rounds": []}
    question = tmp_path / "task.json"
    question.write_text(json.dumps(task), encoding="utf-8")
    done = run_program(question, tmp_path / "answer.json", **environment)
    assert done.returncode == 1
    assert message in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"DLINFER_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": ""}, "finds no cuda device"),
        ({"DLINFER_DEVICE": "cpu", "DLINFER_CPU_MEMORY": "much"}, "Expected GiB as a number above 0"),
        ({"DLINFER_DEVICE": "cpu", "DLINFER_CPU_MEMORY": "-1"}, "Expected GiB as a number above 0"),
    ],
    ids=["no cuda", "no amount", "negative"],
)
def test_wrong_settings_are_refused_before_anything_is_changed(
    environment: dict[str, str], message: str
) -> None:
    program = """
import torch
before = dict(vars(torch.Tensor)), dict(vars(torch)), dict(vars(torch.cuda))
try:
    import dlinfer.framework.lmdeploy_ext
except RuntimeError as error:
    print(error)
assert before == (dict(vars(torch.Tensor)), dict(vars(torch)), dict(vars(torch.cuda)))
"""
    done = run_python("-c", program, **environment)
    assert done.returncode == 0, done.stdout
    assert message in done.stdout


def _check(answers: list[dict[str, Any]], prompts: Any, expected: dict[str, Greedy]) -> None:
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer["length"] == expected[prompt].length
        assert answer["tokens"] == expected[prompt].tokens, prompt
        assert len(answer["tokens"]) == NEW_TOKENS
