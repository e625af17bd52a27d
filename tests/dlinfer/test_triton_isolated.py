"""The tests of the vendor triton with a triton isolated from torch (requirements/triton.txt says why)."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.unit
HERE = Path(__file__).resolve().parent
ISOLATED = Path(sys.prefix) / "triton"


@pytest.mark.skipif(find_spec("triton") is not None, reason="triton is installed: its tests run as they are")
@pytest.mark.skipif(
    not ISOLATED.exists(), reason=f"triton is not installed, nor in {ISOLATED.name}/ of the environment"
)
@pytest.mark.parametrize(
    ("files", "interpreted", "least"),
    [(["test_triton_kernels.py"], "1", 40), (["test_triton_compiled.py", "test_triton_vendor.py"], "0", 40)],
    ids=["interpreted", "compiled"],
)
def test_without_a_gpu(tmp_path: Path, files: list[str], interpreted: str, least: int) -> None:
    """Kernels compute on the CPU, interpreted; and they become machine code of a GPU."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ISOLATED), os.environ.get("PYTHONPATH", "")]),
        "TRITON_INTERPRET": interpreted,
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
    }
    report = tmp_path / "report.xml"
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
        [*command, *(str(HERE / name) for name in files)],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert out.returncode == 0, out.stdout[-4000:]
    (suite,) = ElementTree.parse(report).getroot()
    assert int(suite.attrib["tests"]) - int(suite.attrib["skipped"]) >= least, out.stdout[-2000:]
