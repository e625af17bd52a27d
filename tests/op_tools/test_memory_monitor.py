"""MemoryMonitor: true figures over time, nothing started by looking, and a drawing."""

from __future__ import annotations

import csv
import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from forked_python import run_python

from dicore.settings import SettingError
from op_tools.engine import ENGINE
from op_tools.memory import MemoryMonitor, ProcessTree
from op_tools.memory_plot import plot, size_text
from op_tools.runs import open_run
from op_tools.tools import memory

pytestmark = pytest.mark.device
MIB = 2**20
FOLDER = "op_tools_results/process_memory_result"


def test_rows_peaks_and_files(own_place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.zeros(1, device="dipu")  # the device is in use
    held_before = torch.get_device_module("dipu").memory_allocated()
    with MemoryMonitor(interval=0.02) as monitor:
        assert ENGINE.modes_here() == []
        tensor = torch.empty(32 * MIB, dtype=torch.uint8, device="dipu")
        time.sleep(0.15)
        torch.optim.SGD([torch.zeros(1, requires_grad=True)]).step()
    rows = list(open_run("op_tools_results").rows("memory"))
    assert len(rows) >= 4
    first, last = rows[0], rows[-1]
    highest = max(row["host_rss_bytes"] for row in rows)
    assert last["host_peak_bytes"] >= highest > 0
    assert monitor.host_peak == last["host_peak_bytes"]
    assert last["device_allocated_bytes"] >= held_before + 32 * MIB
    assert last["device_reserved_bytes"] >= last["device_allocated_bytes"]
    assert monitor.device_peak == last["device_peak_bytes"] >= last["device_allocated_bytes"]
    assert last["step"] == first["step"] + 1
    assert [row["time_s"] for row in rows] == sorted(row["time_s"] for row in rows)
    assert last["time_s"] >= 0.15 and last["pid"] == os.getpid() and last["rank"] == 0
    (file,) = Path(FOLDER).glob("*.csv")
    with file.open(newline="") as text:
        table = list(csv.DictReader(text))
    assert list(table[0]) == list(memory.COLUMNS)
    assert [int(row["host_rss_bytes"]) for row in table] == [row["host_rss_bytes"] for row in rows]
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and str(file) in said and size_text(monitor.host_peak) in said
    drawing = ElementTree.fromstring(file.with_suffix(".svg").read_text())
    words = " ".join(element.text or "" for element in drawing.iter() if element.tag.endswith("text"))
    assert (
        "memory (MiB)" in words
        and "time (s)" in words
        and "host, at most" in words
        and "device, at most" in words
    )
    del tensor


GROWS = """
import time
from op_tools.memory import MemoryMonitor
with MemoryMonitor(interval=0.02):
    block = bytearray(64 << 20)
    block[::4096] = b"x" * len(block[::4096])
    time.sleep(0.3)
    del block
"""


def test_the_host_memory_of_a_program_that_grows_and_shrinks(own_place: Path) -> None:
    """In a process of its own: one that ran other tests may give memory back at the same moment."""
    run_python("-c", GROWS, check=True, timeout=120)
    held = [row["host_rss_bytes"] for row in open_run("op_tools_results").rows("memory")]
    assert max(held) - held[0] >= 60 * MIB and max(held) - held[-1] >= 60 * MIB


def test_it_samples_while_the_program_works_and_stops_when_told() -> None:
    monitor = MemoryMonitor(interval=0.02)
    monitor.start()
    thread = monitor._thread
    assert thread.daemon and thread.is_alive()
    deadline = time.monotonic() + 20
    while monitor.results is not None and monitor.results.count < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert monitor.results is not None and monitor.results.count >= 5
    monitor.stop()
    assert not thread.is_alive()
    monitor.start()  # again, into files of its own
    monitor.stop()
    assert len(list(open_run("op_tools_results").contents("memory"))) == 2


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_TOOLS_MEMORY_INTERVAL", "2.5")
    assert MemoryMonitor().settings.interval == 2.5
    assert MemoryMonitor(interval=1.0).settings.interval == 1.0
    monkeypatch.setenv("OP_TOOLS_MEMORY_INTERVAL", "0")
    with pytest.raises(SettingError, match=r"OP_TOOLS_MEMORY_INTERVAL: expected seconds, 0\.01 or more"):
        MemoryMonitor()


@pytest.mark.parametrize("seconds", ["inf", "1e10", "nan", "86401"])
def test_an_interval_that_no_clock_can_wait_for(
    seconds: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SettingError, match="and 86400 or less"):
        MemoryMonitor(interval=float(seconds))
    monkeypatch.setenv("OP_TOOLS_MEMORY_INTERVAL", seconds)
    with pytest.raises(SettingError, match="and 86400 or less"):
        MemoryMonitor()
    with pytest.raises(SystemExit) as ended:
        memory.main(["--pid", str(os.getpid()), "--interval", seconds])
    assert ended.value.code == 2 and "--interval" in capsys.readouterr().err
    assert memory.interval("86400") == 86400.0


@pytest.mark.parametrize("out", ["/proc/nope", "a_file", "n" * 300])
def test_a_folder_that_cannot_be_written_is_told_before_watching(
    out: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("a_file").write_text("")
    watched: list[object] = []
    monkeypatch.setattr(memory, "watch", lambda *arguments: watched.append(arguments) or "")
    assert memory.main(["--pid", str(os.getpid()), "--out", out]) == 2
    err = capsys.readouterr().err
    assert "cannot be written: " in err and out in err and "--out" in err
    assert not watched


def test_a_disk_that_fails_at_the_end_is_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(memory, "watch", full)
    assert memory.main(["--pid", str(os.getpid()), "--out", "out"]) == 2
    assert "op_tools.memory: out cannot be written: No space left" in capsys.readouterr().err


def test_a_forked_child_writes_nothing(own_place: Path) -> None:
    with MemoryMonitor(interval=0.02) as monitor:
        pid = os.fork()
        if pid == 0:
            monitor.sample()
            monitor.stop()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    (contents,) = open_run("op_tools_results").contents("memory")
    assert contents.header["pid"] == os.getpid()
    assert {row["pid"] for row in contents.rows} == {os.getpid()}


def test_looking_starts_no_device(run_python: Callable[..., str]) -> None:
    code = """
        import types, torch
        calls = []
        module = types.SimpleNamespace(
            is_initialized=lambda: False,
            is_available=lambda: True,
            device_count=lambda: calls.append("count") or 1,
        )
        torch.get_device_module = lambda device=None: module
        from op_tools.memory import MemoryMonitor, device_memory
        with MemoryMonitor() as monitor:
            pass
        print(calls, device_memory(), monitor.device_peak)
        """
    assert run_python(code).splitlines()[-1] == "[] None None"


def test_long_runs_keep_few_points() -> None:
    curves = memory.Curves()
    for second in range(50_000):
        curves.add(float(second), second * MIB, None)
    assert 2000 <= len(curves.points) <= 4000
    gaps = {b[0] - a[0] for a, b in zip(curves.points, curves.points[1:], strict=False)}
    assert gaps == {16.0} and curves.points[0][0] == 0.0 and curves.points[-1][0] > 49_000


@pytest.mark.parametrize(
    ("size", "text"), [(512, "512 B"), (1536, "1.50 KiB"), (3 * MIB, "3.00 MiB"), (5 << 30, "5.00 GiB")]
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert size_text(size) == text


def test_the_drawing_puts_values_where_they_belong() -> None:
    drawing = ElementTree.fromstring(plot("a < b", {"host": [(0, 0), (50, 2 << 30), (100, 4 << 30)]}))
    (line,) = [element for element in drawing if element.tag.endswith("polyline")]
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == pytest.approx(x2 - x1) and y0 - y1 == pytest.approx(y1 - y2)
    assert x2 > x0 and y2 < y0
    words = [element.text for element in drawing if element.tag.endswith("text")]
    assert "a < b" in words and "memory (GiB)" in words and "time (s)" in words
    assert {"0", "1", "2", "3", "4"} <= set(words) and {"20", "40", "60", "80", "100"} <= set(words)
    assert ElementTree.fromstring(plot("nothing", {"host": []})) is not None


def test_another_process_with_its_children(own_place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    child = "x = bytearray(80 << 20); x[::4096] = b'x' * len(x[::4096]); import time; time.sleep(1.2)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent])
    tree = ProcessTree(process.pid)
    # Nobody waits for it: it stays behind as a zombie, which is an end too.
    assert memory.main(["--pid", str(process.pid), "--interval", "0.05", "--out", "out"]) == 0
    process.wait()
    assert not tree.alive()
    rows = list(open_run("out").rows("memory"))
    assert len(rows) >= 5 and {row["pid"] for row in rows} == {process.pid}
    highest = max(row["host_rss_bytes"] for row in rows)
    assert highest >= 85 * MIB and rows[-1]["host_peak_bytes"] >= highest
    assert (
        f"process {process.pid} and its children held at most {size_text(highest)}" in capsys.readouterr().out
    )
    assert len(list(Path("out/process_memory_result").glob("*.svg"))) == 1
    assert memory.main(["--pid", str(process.pid)]) == 2
    assert f"there is no process {process.pid}" in capsys.readouterr().err
