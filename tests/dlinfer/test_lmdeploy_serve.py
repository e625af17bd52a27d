"""`dlinfer serve`: what it hands to LMDeploy, and the manager that outlives the start."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("lmdeploy", reason="LMDeploy is not installed")

from dlinfer import cli
from dlinfer.framework import lmdeploy_server

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("given", "handed"),
    [
        (["m"], ["m", "--backend", "pytorch", "--device", "ascend"]),
        (["m", "--device=camb", "--tp", "1"], ["m", "--backend", "pytorch", "--device=camb", "--tp", "1"]),
        (["m", "--backend", "x", "--device", "y"], ["m", "--backend", "x", "--device", "y"]),
    ],
    ids=["defaults", "another device", "both given"],
)
def test_further_options_are_lmdeploys(
    monkeypatch: pytest.MonkeyPatch, given: list[str], handed: list[str]
) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(lmdeploy_server, "serve", seen.append)
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", *given])
    assert ended.value.code == 0 and seen == [handed]


def test_the_manager_outlives_the_start_of_an_engine() -> None:
    """The engine waits for the manager's answer when LMDeploy has left the block."""
    program = """
from lmdeploy.pytorch.engine.mp_engine import zmq_engine
from dlinfer.framework.lmdeploy_server import keep_manager
keep_manager()
with zmq_engine.mp.Manager() as manager:
    shared, condition = manager.dict(), manager.Condition()
    condition.acquire()
shared["port"] = 1
condition.release()
assert shared["port"] == 1 and zmq_engine.mp.get_context("spawn").Process
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
