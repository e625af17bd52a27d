"""The page about torch.compile: both languages have the same code, and it runs as it is printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dicp import registry

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/dicp.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


@pytest.mark.unit
def test_the_programs_run() -> None:
    namespace: dict[str, object] = {}
    for block in blocks("python"):
        exec(compile(block, "docs/dicp.md", "exec"), namespace)


@pytest.mark.unit
def test_all_backends_are_named() -> None:
    named = re.findall(r"^\| `(\w+graph)` \|", PAGE, re.M)
    assert set(named) == {
        point.name for point in registry._points() if point.module.startswith("dicp.vendor.")
    }


@pytest.mark.unit
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(3))
def test_the_commands_run(number: int, tmp_path: Path) -> None:
    scripts = tmp_path / "programs"
    scripts.mkdir()
    for name, module in (("dicp", "-m dicp"), ("python", "")):
        (scripts / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n')
        (scripts / name).chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DICP_", "PYTEST_"))}
    environment = kept | {
        "PATH": os.pathsep.join([str(scripts), os.environ["PATH"]]),
        "OMP_NUM_THREADS": "1",
        "DICP_CACHE_DIR": str(tmp_path / "cache"),
    }
    listed = blocks("sh")
    assert len(listed) == 3
    script = listed[number]
    folder = ROOT if "TEST_DIR" in script else tmp_path
    ran = subprocess.run(
        ["bash", "-e", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    if "explain" in script:
        assert "19 of 19 operators compiled" in ran.stdout and "BiasAdd" not in ran.stdout
        assert "<svg" in (tmp_path / "block.html").read_text(encoding="utf-8")
    elif "TEST_DIR" in script:
        assert len(re.findall(r"\d+ passed", ran.stdout)) == 2
    else:
        assert len(re.findall(r"│ operators +│ +\d+ │ +0 │", ran.stdout)) == 2
