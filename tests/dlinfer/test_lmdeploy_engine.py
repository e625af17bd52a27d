"""LMDeploy's PyTorch engine from PyPI on dlinfer's operators: the tokens of transformers, in every way that it batches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib.util import find_spec
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
from lmdeploy_runs import made_once

if find_spec("lmdeploy") is None:
    pytest.skip("LMDeploy is not installed: see docs/lmdeploy.md", allow_module_level=True)
pytestmark = [pytest.mark.unit, pytest.mark.slow, pytest.mark.timeout(900)]

MODES = {"eager": {"eager_mode": True}, "graph": {"eager_mode": False}}
BATCH = 8
Run = dict[str, Any]


@pytest.fixture(scope="module")
def folder() -> Path:
    from dlinfer.checkpoints import smollm2

    return smollm2.folder()


def expected_of(
    answers: list[Run], prompts: Sequence[str], folder: Path, factory: pytest.TempPathFactory
) -> dict[str, Greedy]:
    """What transformers says about these answers; it is asked once about the same ones, whoever gave them."""
    written = {prompt: answer["tokens"] for prompt, answer in zip(prompts, answers, strict=True)}
    name = f"greedy-{hashlib.sha256(json.dumps(written).encode()).hexdigest()}"
    found = made_once(factory, name, lambda: greedy_of_transformers(folder, written))
    return {prompt: Greedy(*answer) for prompt, answer in found.items()}


@pytest.mark.parametrize("mode", MODES)
def test_the_tokens_of_transformers(
    mode: str, folder: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """All prompts at once and then each alone, in one engine: that is one test, because the engine is dear."""
    rounds = [list(PROMPTS), *([prompt] for prompt in PROMPTS)]
    run = run_engine(folder, tmp_path, rounds, **MODES[mode])
    together, *alone = run["rounds"]
    expected = expected_of(together["answers"], PROMPTS, folder, tmp_path_factory)
    _check_tokens(together["answers"], PROMPTS, expected)
    _check_batches(together)
    _check_chunks(together, expected)
    for prompt, found in zip(PROMPTS, alone, strict=True):
        _check_tokens(found["answers"], [prompt], expected)
        _check_reused_prefix(found, expected[prompt].length)
    assert (run["device"], run["dtype"]) == ("cpu", "torch.float32")
    assert run["graphs"] == (1 if mode == "graph" else 0)


def _check_tokens(answers: list[Run], prompts: Sequence[str], expected: dict[str, Greedy]) -> None:
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer["length"] == expected[prompt].length
        assert answer["tokens"] == expected[prompt].tokens, prompt
        assert len(answer["tokens"]) == NEW_TOKENS


def _check_batches(together: Run) -> None:
    """Sequences come and go, and most steps are full."""
    sizes = [len(new) for decoding, new, _ in together["steps"] if decoding]
    assert max(sizes) == BATCH
    assert sizes.count(BATCH) >= NEW_TOKENS


def _check_chunks(together: Run, expected: dict[str, Greedy]) -> None:
    prefills = [
        pair
        for decoding, new, keys in together["steps"]
        if not decoding
        for pair in zip(new, keys, strict=True)
    ]
    assert max(new for new, _ in prefills) <= CHUNK
    length = expected[LONG[0]].length
    assert length > 2 * CHUNK
    # The parts of one prompt: a first one without keys before it, one in the middle, and one that ends the prompt.
    assert {(CHUNK, CHUNK), (CHUNK, 2 * CHUNK), (length - 2 * CHUNK, length)} <= set(prefills)


def _check_reused_prefix(alone: Run, length: int) -> None:
    """The prompt was answered before, so its full blocks are there; but the last token must be computed."""
    (answer,) = alone["answers"]
    reused = (length - 1) // BLOCK * BLOCK
    assert answer["cached"] == reused
    assert all(len(new) == 1 for _, new, _ in alone["steps"])
    decoding, (new,), (keys,) = alone["steps"][0]
    assert not decoding
    assert keys - new >= reused


@pytest.mark.device
def test_dipu_and_an_error_there(
    folder: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The same tokens. An operator's error is in the log, and nobody waits for an answer that will not come."""
    prompts = [SHORT[0], SHORT[5], LONG[2]]
    rounds = [prompts, [SHORT[0], SHORT[1]], [SHORT[2]]]
    environment = {"DLINFER_DEVICE": "dipu"}
    run = run_engine(folder, tmp_path, rounds, environment=environment, new_tokens=16, failing_round=1)
    assert run["device"] == "dipu:0"
    good, failed, later = ([answer for answer in found["answers"]] for found in run["rounds"])
    expected = expected_of(good, prompts, folder, tmp_path_factory)
    assert [answer["tokens"] for answer in good] == [expected[prompt].tokens for prompt in prompts]
    assert [len(answer["tokens"]) for answer in good] == [16] * 3
    assert [answer["finish"] for answer in (*good, *failed, *later)] == ["length"] * 3 + ["error"] * 3
    assert "dlinfer.paged_decode_attention: block_table: was broken by a test" in run["log"]


@pytest.mark.parametrize(
    ("environment", "engine", "message"),
    [
        ({"DLINFER_DEVICE": "gpu"}, {}, "DLINFER_DEVICE: expected cpu or dipu or cuda, got 'gpu'"),
        ({}, {"tp": 2}, "tp=2, dp=1, ep=1 ask for 2 processes"),
    ],
    ids=["unknown device", "two ranks"],
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
        ({"DLINFER_DEVICE": "cpu", "DLINFER_CPU_MEMORY": "much"}, "expected GiB as a number above 0"),
        ({"DLINFER_DEVICE": "cpu", "DLINFER_CPU_MEMORY": "-1"}, "expected GiB as a number above 0"),
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
except (RuntimeError, ValueError) as error:
    print(error)
assert before == (dict(vars(torch.Tensor)), dict(vars(torch)), dict(vars(torch.cuda)))
"""
    done = run_python("-c", program, **environment)
    assert done.returncode == 0, done.stdout
    assert message in done.stdout


def test_streams_of_cuda_on_the_cpu_are_done_at_once() -> None:
    program = """
import torch
import dlinfer.framework.lmdeploy_ext
for stream in (torch.cuda.current_stream(), torch.cuda.default_stream(0), torch.cuda.Stream()):
    assert isinstance(stream, torch.cuda.Stream) and stream.query()
    stream.synchronize()
    stream.record_event().synchronize()
with torch.cuda.stream(torch.cuda.Stream()):
    assert torch.zeros(2, device="cuda").device.type == "cpu" and not torch.cuda.is_available()
"""
    done = run_python("-c", program, DLINFER_DEVICE="cpu")
    assert done.returncode == 0, done.stdout
