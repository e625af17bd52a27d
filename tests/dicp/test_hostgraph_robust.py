"""The backend `hostgraph` where compiler, cache or disk fail: the right result, and one warning that says what happened."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dicore.workers.commands import run_command

pytestmark = pytest.mark.unit

COMPILERS = {
    "fails": ("echo 'graph.cpp:3: error: no such thing' >&2; exit 1", "no such thing"),
    "is killed": ("kill -9 $$", "SIGKILL"),
    "makes nothing": ("exit 0", "made no file"),
    "makes no library": (
        'while [ "$1" != -o ]; do shift; done; echo nonsense > "$2"',
        "could not be compiled",
    ),
}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a cache that is empty."""
    monkeypatch.setenv("DICP_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def use(script: str) -> None:
        path = folder.with_name("compiler.sh")
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("DICP_CXX", str(path))

    return use


def check() -> None:
    """Two graphs give what eager gives, forward and backward."""
    torch._dynamo.reset()
    for factor in (2.0, 3.0):

        def function(x: Tensor, factor: float = factor) -> Tensor:
            return (x * factor).tanh().sum(1)

        x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        given = torch.compile(function, backend="hostgraph")(x)
        torch.testing.assert_close(given, function(x))
        (gradient,) = torch.autograd.grad(given.sum(), x)
        torch.testing.assert_close(gradient, torch.autograd.grad(function(x).sum(), x)[0])


@pytest.mark.parametrize("what", COMPILERS)
def test_a_compiler_that(
    what: str, compiler: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    script, said = COMPILERS[what]
    compiler(script)
    check()
    (warning,) = warnings(caplog)
    assert said in warning and "runs eagerly" in warning


def test_no_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("DICP_CXX", "/nowhere/g++")
    check()
    (warning,) = warnings(caplog)
    assert "/nowhere/g++" in warning and "Install" in warning


def test_damaged_files_are_compiled_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    check()
    made = list(folder.glob("??/*.so"))
    assert len(made) >= 2 and not warnings(caplog)
    for path in made:  # another file in its place: the old one is mapped by this process
        path.unlink()
        path.write_bytes(b"\x7fELF damaged")
    check()
    (warning,) = warnings(caplog)
    assert "is damaged" in warning
    assert all(path.stat().st_size > 1000 for path in folder.glob("??/*.so"))


def test_a_folder_that_cannot_be_written_to(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.write_text("a file is in the way, of root too")
    check()
    (warning,) = warnings(caplog)
    assert "cannot be kept" in warning and "DICP_CACHE_DIR" in warning


def test_a_full_disk(folder: Path, compiler: Callable[[str], None], caplog: pytest.LogCaptureFixture) -> None:
    full = "echo 'fatal error: error writing to x.s: No space left on device' >&2; exit 1"
    compiler(f'case "$*" in *{folder}*) {full};; esac; exec g++ "$@"')
    check()
    (warning,) = warnings(caplog)
    assert "No space left" in warning and "cannot be kept" in warning


PROCESSES = """
import os, sys
sys.path.append(sys.argv[1])
import torch
from dicp_calls import backend_named, compiled

torch.set_num_threads(1)
x = torch.linspace(-1, 1, 12).reshape(3, 4)
function = lambda x: [x.exp().sum(1)]
children = []
for _ in range(8):
    child = os.fork()
    if not child:
        given = compiled(function, [x], backend_named("hostgraph"))(x)
        torch.testing.assert_close(given, function(x))
        os._exit(0)
    children.append(child)
print("ended with", [os.waitpid(child, 0)[1] for child in children])
"""


def test_eight_processes_compile_the_same_graph(folder: Path) -> None:
    benchmarks = str(Path(__file__).resolve().parents[2] / "benchmarks")
    result = run_command([sys.executable, "-c", PROCESSES, benchmarks], 240)
    assert "ended with [0, 0, 0, 0, 0, 0, 0, 0]" in result.output, result.output
    assert len(list(folder.glob("??/*.so"))) == 1 and not list(folder.glob("work-*"))


def test_code_is_compiled_with_warnings_as_errors(folder: Path) -> None:
    from dicp.compile_jobs import CompileJob
    from dicp.errors import CompileError
    from dicp.vendor.HostGraph.compiler import command

    with pytest.raises(CompileError, match="Werror"):
        CompileJob("int f(int x) { if (x) return 1; }", command()).run()
