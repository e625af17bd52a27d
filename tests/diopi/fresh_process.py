"""Runs tests in a process of their own: a library can be called directly only where torch_dipu is not loaded.

`@fresh` marks such tests. The first one of a file runs all of the file's in a child and the others read its results.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_INSIDE = "DIOPI_TEST_FRESH"


@functools.cache
def _results(file: str) -> dict[str, tuple[str, str]]:
    """Test -> (passed, failure, error or skipped; its text)."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        ran = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:xdist",
                "-p",
                "no:cacheprovider",
                "-m",
                "not device",
                f"--junitxml={report}",
                file,
            ],
            env={**os.environ, _INSIDE: "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        if not report.exists():  # the child died: every test of the file failed by it
            pytest.fail(
                f"the child process ended with {ran.returncode}\n{ran.stdout}\n{ran.stderr}", pytrace=False
            )
        found = {}
        for case in ET.parse(report).iter("testcase"):
            problem = next((part for part in case if part.tag in ("failure", "error", "skipped")), None)
            text = "" if problem is None else f"{problem.get('message')}\n{problem.text}"
            found[case.attrib["name"]] = ("passed" if problem is None else problem.tag, text)
        return found


def fresh(test: Callable[..., None]) -> Callable[..., None]:
    """Runs the test in a fresh process, in which torch_dipu is not loaded."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        if os.environ.get(_INSIDE):
            return test(*args, **kwargs)
        file, _, name = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0].partition("::")
        root = Path(__file__).parents[2]
        outcome, text = _results(str(root / file))[name]
        if outcome == "skipped":
            pytest.skip(text)
        if outcome != "passed":
            pytest.fail(f"in a process of its own:\n{text}", pytrace=False)

    return run
