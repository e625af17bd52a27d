"""Runs tests with a triton that is isolated from torch (requirements/triton.txt says why)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

ISOLATED = Path(sys.prefix) / "triton"
needs_isolated_triton = [
    pytest.mark.skipif(
        find_spec("triton") is not None, reason="triton is installed: its tests run as they are"
    ),
    pytest.mark.skipif(
        not ISOLATED.exists(), reason=f"triton is not installed, nor in {ISOLATED.name}/ of the environment"
    ),
]


def run_isolated(files: Sequence[Path], interpreted: bool, least: int, folder: Path) -> None:
    """They pass, and at least so many of them are not skipped. `folder`: for what they write."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ISOLATED), os.environ.get("PYTHONPATH", "")]),
        "TRITON_INTERPRET": str(int(interpreted)),
        "TRITON_CACHE_DIR": str(folder / "cache"),
    }
    report = folder / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
    ]
    out = subprocess.run(
        [*command, *map(str, files)],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert out.returncode == 0, out.stdout[-4000:]
    (suite,) = ElementTree.parse(report).getroot()
    assert int(suite.attrib["tests"]) - int(suite.attrib["skipped"]) >= least, out.stdout[-2000:]
