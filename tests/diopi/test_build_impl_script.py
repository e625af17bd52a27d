"""`impl/scripts/build_impl.sh`: the published name of the build."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.null

SCRIPTS = Path(__file__).parents[2] / "impl" / "scripts"


def _run(tmp_path: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """With a `diopi` in front of the real one that says how it was called."""
    program = tmp_path / "diopi"
    program.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    program.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if key != "DIOPI_SOURCE"}
    environment |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", **variables}
    command = ["sh", str(SCRIPTS / "build_impl.sh"), *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=tmp_path)


def test_torch_builds_into_lib(tmp_path: Path) -> None:
    done = _run(tmp_path, "torch", "cpu", DIOPI_SOURCE="/a checkout")
    library = SCRIPTS.parent / "lib" / "libdiopi_impl.so"
    expected = ["build-published", "--source", "/a checkout", "--device", "cpu", "--out", str(library)]
    assert done.stdout.splitlines() == expected, done.stderr


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    done = _run(tmp_path, "torch")
    assert (done.returncode, done.stdout) == (2, "") and "set DIOPI_SOURCE to a checkout" in done.stderr
    done = _run(tmp_path, "otherchip")
    assert done.returncode == 2 and "'otherchip' is not built here. Expected torch or clean" in done.stderr
