"""Replay in worker processes: what it says without Ray, and what its log keeps when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import capture, nothing
from executor_tasks import wait_for

from op_tools import cli
from op_tools.runs import open_run
from op_tools.storage.log_reader import find_logs, read_log

pytestmark = pytest.mark.unit


def test_without_ray_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "call").mkdir()
    (tmp_path / "call" / "input.pth").write_bytes(b"")
    with pytest.raises(SystemExit) as ended:
        cli.main(["replay", str(tmp_path), "--ray", "local", "--device", "cpu"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("op-tools: --ray needs the package ray")
    assert 'pip install "ray"' in said and "ditorch[ray]" in said


# --- the log of a replay ------------------------------------------------------------------------------------


def test_a_killed_replay_keeps_what_was_done(tmp_path: Path) -> None:
    for number in range(1, 4):
        capture(tmp_path / "data", torch.exp, (torch.rand(9),), forward_id=number)
    (tmp_path / "waits_for_test.py").write_text(
        "import time\ndef slow(x):\n    time.sleep(3600) if x.device.type != 'meta' else None\n    return x\n",
        encoding="utf-8",
    )
    capture(
        tmp_path / "data", nothing, (torch.ones(2),), name="waits_for_test.slow", forward_id=4, outputs=False
    )
    words = [
        "replay",
        "data",
        "--workers",
        "0",
        "--device",
        "cpu",
        "--out",
        "out",
        "--allow",
        "waits_for_test",
    ]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "op_tools.cli", *words],
        cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL,
    ) as program:  # fmt: skip
        wait_for(lambda: len(logged(tmp_path / "out")) >= 3, seconds=120)
        program.send_signal(signal.SIGKILL)
    rows = logged(tmp_path / "out")
    assert [row["verdict"] for row in rows.values()] == ["same"] * 3
    assert not list((tmp_path / "out").rglob("*.csv"))


def logged(out: Path) -> dict[str, dict[str, Any]]:
    """The last row of each call that the log has."""
    return {row["item"]: row for path in find_logs(out, "op_replay_info") for row in read_log(path).rows}


def test_rows_of_times_and_of_calls_that_compared_nothing_are_logged_too(
    tmp_path: Path,
) -> None:
    capture(tmp_path / "data", torch.exp, (torch.rand(9),))
    capture(tmp_path / "data", nothing, ("x",), name="os.system", forward_id=2, outputs=False)
    words = ("data", "--device", "cpu", "--workers", "0", "--sync_time_measure", "--run_times", "2")
    with pytest.raises(SystemExit) as ended:
        cli.main(["replay", *words])
    assert ended.value.code == 1
    rows = list(open_run("op_tools_results").rows("replay"))
    by_name = {name: [row for row in rows if row["name"] == name] for name in ("torch.exp", "os.system")}
    assert len(rows) == 3
    assert all(row["forward_elasped"] > 0 and row["unit"] == "ms" for row in by_name["torch.exp"])
    (refused,) = by_name["os.system"]
    assert refused["verdict"] == refused["status"] == "refused" and "os.system" in refused["reason"]
