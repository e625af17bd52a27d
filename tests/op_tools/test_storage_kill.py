"""kill -9 at random moments of a capture run; the judge is benchmarks/kill_capture.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "kill_capture.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)


def test_twenty_kills_lose_nothing_that_was_reported(tmp_path: Path) -> None:
    result = run("--kills", "20", "--json", str(tmp_path / "out.json"))
    assert result.returncode == 0, result.stdout + result.stderr
    cases = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert [case["name"] for case in cases] == ["files", "blobs"]
    for case in cases:
        assert case["raw"]["kills"] == 10 and case["raw"]["broken"] == []
        assert case["raw"]["files"] > 50 and case["raw"]["rows"] > 10


def test_the_judge_sees_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge that never complains would make the test above worthless."""
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    import kill_capture
    from op_tools.storage import CallInfo, CaptureStore, Log

    paths: list[str] = []
    with CaptureStore(tmp_path, on_saved=paths.append) as store, Log(tmp_path, "rows") as log:
        for number in range(4):
            call = CallInfo("torch.Tensor.add", number)
            values = kill_capture.values(number + (number == 3), "input")
            store.put(call, "input", (values, number), {"part": "input"})
            log.append({"n": number})
    Path(paths[0]).unlink()
    Path(paths[1]).write_bytes(Path(paths[1]).read_bytes()[:-40])
    outcome = kill_capture.Outcome()
    kill_capture.judge(tmp_path, [*(f"file {path}" for path in paths), "rows 4"], outcome)
    found = "\n".join(outcome.broken)
    assert len(outcome.broken) == 4, found
    assert "is missing" in found and "CaptureDamaged" in found and "other values" in found
    assert "row 4 was reported" in found
