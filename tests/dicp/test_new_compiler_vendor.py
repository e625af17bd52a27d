"""A graph compiler in one folder: the page's files and commands, written and run as they are printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/new-compiler-vendor.md", "docs/new-compiler-vendor.zh-CN.md")


def files(page: str) -> dict[str, str]:
    """What the page says is in each file."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return dict(re.findall(r"^`(new_backend/[^`]+)`\n\n```\w+\n(.*?)^```", text, re.M | re.S))


def commands(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        line for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S) for line in block.splitlines()
    ]


@pytest.mark.null
def test_both_languages_have_the_same_files_and_commands() -> None:
    english, chinese = (
        {name: re.sub(r"\s+# .*", "", body) for name, body in files(page).items()} for page in PAGES
    )
    assert english == chinese
    assert commands(PAGES[0]) == commands(PAGES[1])
    assert len(files(PAGES[0])) == 10


@pytest.mark.unit
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_makes_a_backend(tmp_path: Path) -> None:
    site, scripts = tmp_path / "site", tmp_path / "programs"
    scripts.mkdir()
    for name in ("dicp", "python"):
        program = scripts / name
        call = "-m dicp" if name == "dicp" else ""
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {call} "$@"\n')
        program.chmod(0o755)
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("DICP_", "PYTEST_", "PIP_"))
    }
    environment = kept | {
        "PATH": os.pathsep.join([str(scripts), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])),
        "PIP_TARGET": str(site),
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "DICP_CACHE_DIR": str(tmp_path / "cache"),
        "TEST_DIR": str(ROOT / "test"),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
    }
    folder, printed = tmp_path, {}
    for command in commands(PAGES[0]):
        if command.startswith("cd "):
            folder = folder / command.removeprefix("cd ")
            continue
        ran = subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
        printed[command.split()[0] + command.split()[1]] = ran.stdout
        if command.startswith("mkdir"):
            for name, body in files(PAGES[0]).items():
                (tmp_path / name).write_text(body)
    assert printed["python-c"].strip() == "tensor([2., 2., 2., 2., 2., 2.])"
    passed, failed = re.search(r"│ operators +│ +(\d+) │ +(\d+) │", printed["dicpconformance"]).groups()
    assert int(passed) >= 4 and failed == "0"
    runs = re.findall(r"(\d+) passed", printed["bash./test/new_backend_scripts/ops/run_test_ops.sh"])
    assert len(runs) == 2 and all(int(count) >= 1 for count in runs)
