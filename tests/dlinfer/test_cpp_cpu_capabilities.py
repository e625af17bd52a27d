"""The CPU capabilities that cpp's kernels are compiled for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_cpp: Any = pytest.importorskip("dlinfer._cpp")
pytestmark = pytest.mark.unit

CAPABILITIES = ("plain", "avx2", "avx512")
FOLDER = Path(__file__).resolve().parent


def _python(program: str, capability: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the capability is chosen when the library is loaded."""
    given = {**os.environ, "DLINFER_CPP_LEVEL": capability, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=given, check=False
    )


@pytest.mark.parametrize("capability", ["plain", "avx2"])
def test_every_operator_passes_with_lower_capabilities(capability: str) -> None:
    """Cases of the conformance suite and random ones. The highest is tried by all other tests."""
    if CAPABILITIES.index(capability) >= CAPABILITIES.index(_cpp.cpu_capability()):
        pytest.skip(f"this machine, or this run, has no more than {_cpp.cpu_capability()}")
    done = _python(
        f"""
import sys
import torch
import dlinfer._cpp
assert dlinfer._cpp.cpu_capability() == {capability!r}
sys.path.append({str(FOLDER)!r})
import dlinfer_fuzz
assert dlinfer_fuzz.main(["--rounds", "6"]) == 0
from dlinfer.cli import main
main(["conformance", "--vendor", "cpp", "--quick"])
""",
        capability,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_a_capability_that_does_not_exist_is_an_error_that_says_which_do() -> None:
    done = _python("import torch, dlinfer._cpp", "avx1024")
    assert (
        done.returncode != 0
        and "DLINFER_CPP_LEVEL=avx1024: expected plain, avx2, avx512 or nothing" in done.stderr
    )


def test_with_a_wrong_capability_the_vendor_says_so_and_the_reference_serves() -> None:
    done = _python(
        "from dlinfer.vendors import installed, served_by;"
        "print(installed()['cpp'].problem); print(served_by('rms_norm', 'cpu').name)",
        "avx1024",
    )
    assert done.returncode == 0, done.stderr
    problem, name = done.stdout.strip().splitlines()
    assert "DLINFER_CPP_LEVEL=avx1024" in problem and name == "ref"
