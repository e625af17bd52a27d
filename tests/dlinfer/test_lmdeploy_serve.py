"""`dlinfer serve`: what it hands to LMDeploy, the manager that outlives the start, and an end that leaves no process."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from forked_python import run_python

pytest.importorskip("lmdeploy", reason="LMDeploy is not installed")

from lmdeploy_client import DLINFER, serving
from lmdeploy_models import llama3
from lmdeploy_runs import LMDEPLOY

from dlinfer import cli
from dlinfer.framework.lmdeploy import server

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("given", "handed"),
    [
        ([], ["--backend", "pytorch", "--device", "ascend"]),
        (["--device=camb", "--tp", "1"], ["--backend", "pytorch", "--device=camb", "--tp", "1"]),
        (["--backend", "x", "--device", "y"], ["--backend", "x", "--device", "y"]),
    ],
    ids=["defaults", "another device", "both given"],
)
def test_further_options_are_lmdeploys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: list[str], handed: list[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    port = ["--server-port", str(_free_port())]
    for folder in (str(tmp_path), "an-owner/a-model"):  # the latter is a name on a model hub
        assert _serve(monkeypatch, folder, *given, *port) == (0, [[folder, *handed, *port]])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _serve(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, list[list[str]]]:
    """The exit code, and what LMDeploy was given."""
    seen: list[list[str]] = []
    monkeypatch.setattr(server, "serve", seen.append)
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code, seen


def test_what_cannot_be_served_is_said_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, model = tmp_path / "empty", tmp_path / "model"
    for folder in (empty, model):
        folder.mkdir()
    (model / "config.json").write_text("{}")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = str(other.getsockname()[1])
        wrong = {
            "there is no such folder": [str(tmp_path / "none")],
            "it has no config.json": [str(empty)],
            f"port {taken} of 127.0.0.1: Address already in use": [
                str(model),
                "--server-name=127.0.0.1",
                "--server-port",
                taken,
            ],
            "--server-port 70000 is no port": [str(model), "--server-port=70000"],
            "nowhere.invalid": [str(model), "--server-name", "nowhere.invalid"],
        }
        for reason, words in wrong.items():
            assert _serve(monkeypatch, *words) == (2, [])
            assert reason in capsys.readouterr().err


def test_the_manager_outlives_the_start_of_an_engine() -> None:
    """The engine waits for the manager's answer when LMDeploy has left the block."""
    program = """
from lmdeploy.pytorch.engine.mp_engine import zmq_engine
from dlinfer.framework.lmdeploy.server import keep_manager
keep_manager()
with zmq_engine.mp.Manager() as manager:
    shared, condition = manager.dict(), manager.Condition()
    condition.acquire()
shared["port"] = 1
condition.release()
assert shared["port"] == 1 and zmq_engine.mp.get_context("spawn").Process
"""
    done = run_python("-c", program, timeout=120, preload=LMDEPLOY)
    assert done.returncode == 0, done.stderr


def test_a_wrong_setting_is_said_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DLINFER_VENDOR", "nobody")
    assert _serve(monkeypatch, "an-owner/a-model") == (2, [])
    assert "DLINFER_VENDOR='nobody' names no installed vendor" in capsys.readouterr().err


def test_a_server_whose_engine_cannot_be_made_ends_and_says_why(tmp_path: Path) -> None:
    """LMDeploy's own waits for ever."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 64,
        "hidden_size": 32,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    program = f"""
import threading
from lmdeploy.pytorch.engine.mp_engine.zmq_engine import ZMQMPEngine
from lmdeploy import PytorchEngineConfig
from dlinfer.framework.lmdeploy.server import end_with_engine, keep_manager
if __name__ == "__main__":
    keep_manager()
    end_with_engine()
    ZMQMPEngine({str(tmp_path)!r}, PytorchEngineConfig(device_type="ascend", tp=2))
"""
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 1
    assert "tp=2, dp=1, ep=1 ask for 2 processes" in done.stderr + done.stdout
    assert "RPCServerDeadError" in done.stderr.splitlines()[-1]


def test_who_asks_with_an_empty_prompt_is_told_so() -> None:
    """The engine's own guard could only say that the prompt has a wrong length."""
    program = """
from lmdeploy.serve.core.async_engine import AsyncEngine
from dlinfer.framework.lmdeploy.generation import refuse_empty_prompts
refuse_empty_prompts()
try:
    AsyncEngine._determine_gen_config(None, [])
except ValueError as error:
    print(error)
"""
    done = run_python("-c", program, timeout=120, check=True, preload=LMDEPLOY)
    assert "The prompt has no tokens" in done.stdout


# ---- the end ----


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 0)])
def test_a_signal_ends_every_process_while_answers_are_under_way(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """LMDeploy's own waits for the last answer, and SIGTERM leaves the manager's process for ever."""
    llama3(tmp_path)
    begun = threading.Event()
    with serving(tmp_path, tmp_path / "log", "--session-len", "8192", program=DLINFER) as running:

        def ask() -> None:
            try:
                with running.stream("Tell me", 8000, ignore_eos=True) as pieces:
                    for _ in pieces:
                        begun.set()
            except OSError:
                pass  # cut off

        clients = [threading.Thread(target=ask) for _ in range(8)]
        for client in clients:
            client.start()
        assert begun.wait(60)
        assert len(running.tree()) > 2  # the engine and the manager
        ended = running.stop(number)
        for client in clients:
            client.join(60)
            assert not client.is_alive()
    assert ended["left"] == []
    assert ended["code"] == code, (tmp_path / "log").read_text()[-4000:]


def test_the_manager_ends_with_a_server_that_was_killed() -> None:
    program = """
import os, signal
from lmdeploy.pytorch.engine.mp_engine import zmq_engine
from dlinfer.framework.lmdeploy.server import keep_manager
keep_manager()
with zmq_engine.mp.Manager() as manager:
    print(manager._process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = run_python("-c", program, timeout=120, preload=LMDEPLOY)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(60)
