"""A compiler's job gives the right file whatever happens to the cache, the disk or the compiler, with one warning."""

from __future__ import annotations

import logging
import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from dicore.workers.commands import run_command
from dicp.compile_jobs import CompileJob, compile_library
from dicp.compile_jobs import job as job_module
from dicp.compile_jobs.disk_cache import DiskCache, checksum
from dicp.errors import CompileError

pytestmark = pytest.mark.null

# "Compiles" by writing the source in capitals; each run adds a line to a file, so that runs can be counted.
COMPILER = """
import os, pathlib, sys, time
source, output, runs = sys.argv[1:4]
with open(runs, "a") as file:
    file.write("run\\n")
text = pathlib.Path(source).read_text()
if "fail" in text:
    sys.exit("graph.cpp:3: error: no such thing")
if "hang" in text:
    if os.fork() == 0:
        pathlib.Path(runs + ".child").write_text(str(os.getpid()))
    time.sleep(1000)
if "killed" in text:
    os.kill(os.getpid(), 9)
if "nothing" in text:
    sys.exit(0)
if "full" in text and "shm" not in source and str(sys.argv[4]) in source:
    sys.exit("fatal error: error writing to x.s: No space left on device")
time.sleep(0.2 if "slow" in text else 0)
pathlib.Path(output).write_text(text.upper())
"""


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "compiler.py").write_text(COMPILER)
    monkeypatch.setenv("DICP_CACHE_DIR", str(tmp_path / "cache"))
    return [
        sys.executable,
        str(tmp_path / "compiler.py"),
        "{source}",
        "{output}",
        str(tmp_path / "runs"),
        str(tmp_path / "cache"),
    ]


def runs(folder: Path) -> int:
    return (folder / "runs").read_text().count("run")


def warnings(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_source_is_compiled_once(compiler, tmp_path):
    first = compile_library("abc", compiler)
    assert first.read_text() == "ABC" and first.suffix == ".so"
    assert compile_library("abc", compiler) == first and runs(tmp_path) == 1
    assert compile_library("abd", compiler).read_text() == "ABD"
    assert compile_library("abc", compiler, key="other versions") != first and runs(tmp_path) == 3
    assert not list((tmp_path / "cache").glob("work-*"))


def test_a_damaged_file_is_compiled_again(compiler, tmp_path, caplog):
    path = compile_library("abc", compiler)
    path.write_text("AB")
    assert compile_library("abc", compiler).read_text() == "ABC" and runs(tmp_path) == 2
    assert len(warnings(caplog)) == 1 and "damaged" in caplog.text


def test_a_failing_compiler_says_what_it_wrote(compiler):
    with pytest.raises(CompileError, match=r"exit code 1.*\n.*no such thing"):
        compile_library("fail", compiler)
    with pytest.raises(CompileError, match="made no file"):
        compile_library("nothing", compiler)
    with pytest.raises(CompileError, match="SIGKILL"):
        compile_library("killed", compiler)


def test_no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("DICP_CACHE_DIR", str(tmp_path))
    with pytest.raises(CompileError, match="no compiler 'no-such-compiler'"):
        compile_library("abc", ["no-such-compiler", "{source}", "{output}"])


def test_a_compiler_that_hangs_is_ended_with_its_children(compiler, tmp_path):
    with pytest.raises(CompileError, match="ended after 2 s"):
        compile_library("hang", compiler, time_limit=2)
    child = int((tmp_path / "runs.child").read_text())
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_an_interrupt_ends_the_compiler(tmp_path):
    program = (
        "import os, signal, time, pathlib, sys\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
        "os.kill(os.getppid(), signal.SIGINT)\n"
        "time.sleep(1000)\n"
    )
    with pytest.raises(KeyboardInterrupt):
        run_command([sys.executable, "-c", program], 100)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def unwritable(folder: Path) -> None:
    """A folder that nobody can write to, not even root: a file is in its way."""
    folder.write_text("")


def test_a_folder_that_cannot_be_written_to(compiler, tmp_path, caplog):
    unwritable(tmp_path / "cache")
    for _ in range(2):
        assert compile_library("abc", compiler).read_text() == "ABC"
        assert compile_library("abd", compiler).read_text() == "ABD"
    assert len(warnings(caplog)) == 1 and "DICP_CACHE_DIR" in caplog.text


@pytest.mark.skipif(os.getuid() == 0, reason="root may write to read-only folders")
def test_a_read_only_folder(compiler, tmp_path, caplog):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert compile_library("abc", compiler).read_text() == "ABC"
    assert len(warnings(caplog)) == 1


def test_a_read_only_folder_still_serves_what_is_in_it(compiler, tmp_path, monkeypatch):
    path = compile_library("abc", compiler)

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(DiskCache, "locked", refuse)
    monkeypatch.setattr(os, "utime", refuse)
    assert compile_library("abc", compiler) == path and runs(tmp_path) == 1


def test_a_full_disk(compiler, tmp_path, caplog):
    assert compile_library("full", compiler).read_text() == "FULL"
    assert len(warnings(caplog)) == 1 and "No space left" in caplog.text


def test_no_room_anywhere(compiler, tmp_path, monkeypatch):
    unwritable(tmp_path / "cache")

    def full(parent):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(job_module, "_process_folder", full)
    with pytest.raises(CompileError, match="no folder can be written to"):
        compile_library("abc", compiler)


def test_eight_processes_compile_once(compiler, tmp_path):
    program = (
        "import sys\nfrom dicp.compile_jobs import compile_library\n"
        "path = compile_library('slow abc', sys.argv[1:])\nsys.stdout.write(f'{path} {path.read_text()}\\n')"
    )
    # One shell starts them all and waits: a test may not start processes in another way than the package.
    script = 'for i in 1 2 3 4 5 6 7 8; do "$@" & done; wait'
    command = ["sh", "-c", script, "sh", sys.executable, "-c", program, *compiler]
    result = run_command(command, 120)
    lines = result.output.splitlines()
    assert len(lines) == 8 and len(set(lines)) == 1 and lines[0].endswith("SLOW ABC")
    assert runs(tmp_path) == 1


def test_a_process_that_is_killed_leaves_no_lock(compiler, tmp_path):
    program = (
        "import os, sys\nfrom dicp.compile_jobs.disk_cache import DiskCache\n"
        "key = sys.argv[1]\n"
        "with DiskCache().locked(key, 1):\n    os.kill(os.getpid(), 9)\n"
    )
    key = CompileJob("abc", compiler).cache_key()
    assert run_command([sys.executable, "-c", program, key], 60).code == -signal.SIGKILL
    assert compile_library("abc", compiler).read_text() == "ABC"


def test_the_size_is_limited(compiler, tmp_path, monkeypatch):
    paths = [compile_library(f"{number} {'x' * 1000}", compiler) for number in range(3)]
    for age, path in ((3000, paths[0]), (5000, paths[1]), (4000, paths[2])):
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    monkeypatch.setenv("DICP_CACHE_SIZE", "3500")
    store = DiskCache()
    store.limit()
    assert all(path.exists() for path in paths)
    monkeypatch.setenv("DICP_CACHE_SIZE", "2500")
    new = compile_library("new", compiler)
    assert [path.exists() for path in [*paths, new]] == [True, False, True, True]
    assert store.size()[0] == 3
    assert checksum(new) in new.name
