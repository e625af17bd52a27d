"""Nonsense as arguments: a library answers with an error, never with a crash."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from forked_python import run_python

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
SCRIPT = FOLDER / "diopi_fuzz.py"


def _fuzz(*options: str) -> subprocess.CompletedProcess[str]:
    return run_python(str(SCRIPT), *options)


@pytest.mark.device
def test_the_simulated_chip_survives() -> None:
    ran = _fuzz("--seconds", "6", "--seed", "1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    answers = {name: int(count) for count, name in re.findall(r"(\d+) (diopi\w+)", ran.stdout)}
    # both kinds of answer: the calls are neither all nonsense nor all harmless
    assert answers["diopiSuccess"] > 50 and answers["diopiErrorOccurred"] > 50
    assert ran.stdout.endswith("; 0 findings\n")


def test_the_faults_of_a_careless_library_are_found(tmp_path: Path) -> None:
    library = tmp_path / "libcareless.so"
    source = FOLDER / "careless_vendor.c"
    subprocess.run(
        ["gcc", "-O0", "-shared", "-fPIC", f"-I{ROOT / 'include'}", "-o", str(library), str(source)],
        check=True,
    )
    options = ("--seconds", "2", "--patience", "1", "--nonsense", "--save", str(tmp_path / "found"))
    ran = _fuzz("--library", str(library), *options)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "diopiExp dies of SIGSEGV\n" in ran.stdout  # and nothing about an earlier call
    assert "diopiSin writes outside of a tensor\n" in ran.stdout
    assert "diopiCos hangs for more than 1 s\n" in ran.stdout
    assert "diopiTan" not in ran.stdout
    # the call is written down as it was made
    saved = json.loads(next((tmp_path / "found").glob("*diopiExp.json")).read_text())
    assert saved["arguments"]["input"] is None and saved["reproduces"] is True


def test_a_library_that_cannot_be_loaded_is_said(tmp_path: Path) -> None:
    ran = _fuzz("--library", str(tmp_path / "nowhere.so"), "--seconds", "1")
    assert ran.returncode != 0 and "there is no file" in ran.stderr
