"""A disk that is full or may not be written to: one message for all tools, every summary, and no half of a file."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import capture

import op_tools
from op_tools import cli
from op_tools.storage import CsvView, errors, read_log

pytestmark = pytest.mark.unit

NOWHERE = "/proc/nowhere"  # not even root makes a folder there
TOOLS = ("OpAutoCompare", "OpCapture", "OpObserve", "OpTimeMeasure", "OpLayers", "MemoryMonitor")


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_told", set())


def train(folder: str) -> float:
    """A few steps under all tools that write; the last loss."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tools = [getattr(op_tools, name)(device="cpu", results=folder) for name in TOOLS]
    for tool in tools:
        tool.start()
    for _ in range(3):
        loss = model(torch.ones(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for tool in reversed(tools):
        tool.stop()
    return float(loss.detach())


def test_all_tools_say_it_once_and_sum_up(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    right = train(str(tmp_path))
    capfd.readouterr()
    assert train(NOWHERE) == right
    out, err = capfd.readouterr()
    assert [line for line in err.splitlines() if line.startswith("op_tools")] == [
        line for line in err.splitlines() if "can no longer be written" in line
    ]
    assert err.count("can no longer be written") == 1 and NOWHERE in err
    assert "could not handle" not in out + err
    for said in (
        "OpAutoCompare judged",
        "OpCapture saved 0 files",
        "OpObserve saw",
        "OpLayers saved",
        "MemoryMonitor",
        "forward_ms",
    ):
        assert said in out, said
    assert out.count("not saved (") == 4 and out.count("INCOMPLETE") == 2


def test_a_pack_of_which_nothing_could_be_written_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = os.writev, []

    def writev(descriptor: int, pieces: Any) -> int:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if not path.endswith(".pack"):
            return real(descriptor, pieces)
        refused.append(path)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "writev", writev)
    with op_tools.OpCapture(device="cpu", results=str(tmp_path), store="blobs"):
        torch.ones(10) + torch.ones(10)
    assert refused and not list(tmp_path.rglob("*.pack"))


@pytest.mark.parametrize("left", [700, 5_000, 20_000, 21_000, 40_000])
def test_a_disk_that_fills_up_leaves_whole_files(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """Every write takes from what is left; the one that comes to the end is cut, as the kernel does it."""
    real = os.writev
    one_at_a_time = threading.Lock()  # tools write from threads of their own

    def writev(descriptor: int, pieces: Any) -> int:
        nonlocal left
        content = b"".join(pieces)
        if not content:
            return 0
        with one_at_a_time:
            if not left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            done = real(descriptor, [content[:left]])
            left -= done
        return done

    monkeypatch.setattr(os, "writev", writev)
    train(str(tmp_path))
    monkeypatch.undo()
    out, err = capfd.readouterr()
    assert err.count("can no longer be written") == 1 and "No space left" in err
    assert "could not handle" not in out + err and "OpAutoCompare judged" in out
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and all(path.stat().st_size for path in files)
    for path in files:
        assert ".incoming" not in path.parts
        if path.suffix == ".oplog":
            assert read_log(path).dropped_bytes == 0
        elif path.suffix == ".csv":
            assert path.read_bytes().endswith(b"\n")
        elif path.suffix == ".pth":
            op_tools.load(path)
        elif path.suffix == ".json":
            assert path.with_suffix("").exists(), "a description of nothing"


def test_a_table_that_cannot_be_written_has_no_half_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = CsvView(tmp_path / "rows.csv", ("name",))
    real = os.writev

    def half(descriptor: int, pieces: Any) -> int:
        real(descriptor, [b"".join(pieces)[:7]])
        raise OSError(errno.ENOSPC, "full")

    for content in ("", "name\nfirst\n"):
        monkeypatch.setattr(os, "writev", half)
        with pytest.raises(OSError, match="full"):
            view.append([{"name": "second one"}])
        assert view.path.exists() == bool(content) and (not content or view.path.read_text() == content)
        monkeypatch.undo()
        view.append([{"name": "second"}] if content else [{"name": "first"}])
    assert view.path.read_text() == "name\nfirst\nsecond\n"


def test_two_processes_of_one_number_have_two_tables(tmp_path: Path) -> None:
    path = tmp_path / f"info_pid{os.getpid()}_2026-01-31-23-59-59.csv"
    path.write_text("name\nof the other container\n")
    mine = CsvView(path, ("name",))
    mine.append([{"name": "mine"}])
    assert mine.path.name == f"{path.stem}-2.csv" and mine.path.read_text() == "name\nmine\n"
    again = CsvView(mine.path, ("name",))
    again.append([{"name": "more of mine"}])
    assert path.read_text() == "name\nof the other container\n"
    assert mine.path.read_text() == "name\nmine\nmore of mine\n"


def command(capfd: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    return int(str(ended.value.code)), *capfd.readouterr()


@pytest.mark.parametrize(("factor", "expected", "counted"), [(1, 2, "1 same"), (2, 1, "1 fail")])
def test_a_replay_says_what_it_found(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], factor: int, expected: int, counted: str
) -> None:
    folder = capture(tmp_path, torch.exp, (torch.rand(9),), change=lambda y: y * factor)
    here = ("--device", "cpu", "--workers", "0", "--out", NOWHERE)
    code, out, err = command(capfd, "replay", folder, *here)
    assert (code, out.splitlines()[-1]) == (expected, f"1 call: {counted}")
    assert len(err.splitlines()) == 1 and NOWHERE in err and "--out names another folder" in err
    code, out, _ = command(capfd, "replay", folder, "--json", *here)
    assert code == expected == json.loads(out)["exit_code"]


def test_an_export_that_cannot_be_written_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capture(tmp_path / "data", torch.exp, (torch.rand(9),), kind="blobs")
    code, _, err = command(capfd, "export", tmp_path / "data", f"{NOWHERE}/e")
    assert code == 2 and len(err.splitlines()) == 1 and "cannot be written" in err
    code, out, _ = command(capfd, "export", tmp_path / "data" / "op_capture_results", tmp_path / "e")
    assert (code, out.split()[0]) == (0, "2")
    assert [path.name for path in (tmp_path / "e").iterdir()] == ["torch.exp"]
