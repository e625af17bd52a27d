"""A vendor library that is linked to torch loads where torch is installed in another folder than diopi."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch

import dicore
import diopi
from diopi.vendors.host import VENDOR

pytestmark = pytest.mark.unit

_CALL = """
import ctypes, sys
from pathlib import Path
import diopi
from diopi.library import Library, Tensor
from diopi.vendors.host import VENDOR

assert Path(sys.prefix) in Path(diopi.__file__).parents, diopi.__file__
library = Library.open(VENDOR.library)
values = (ctypes.c_float * 2)(0.0, 1.0)
memory = library.memory
x = Tensor(memory.allocate(8), [2], [1], "float32")
memory.write(x.pointer, ctypes.addressof(values), 8)
answer = library.call("diopiExpInp", {"input": x})
assert answer.ok, answer
library.synchronize()
memory.read(x.pointer, ctypes.addressof(values), 8)
print(*(f"{value:.4f}" for value in values), "torch" in sys.modules)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like `python -m venv --system-site-packages` with only our packages installed in it: torch is further down the path."""
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for package in (dicore, diopi):
        ignore = shutil.ignore_patterns("conformance", "__pycache__")
        shutil.copytree(Path(package.__file__).parent, site / package.__name__, ignore=ignore)
    (site / "elsewhere.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    return folder


def _python(environment: Path, code: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")}
    program = environment / "bin" / Path(sys.executable).name
    command = [str(program if program.exists() else environment / "bin" / "python"), "-c", code]
    return subprocess.run(command, env=kept, capture_output=True, text=True, check=False, timeout=120)


def test_the_system_alone_does_not_find_torch(environment: Path) -> None:
    """Otherwise the next test shows nothing."""
    library = next(environment.rglob(VENDOR.library.name))
    ran = _python(environment, f"import ctypes; ctypes.CDLL({str(library)!r})")
    assert ran.returncode == 1
    assert "cannot open shared object file" in ran.stderr


def test_the_vendor_library_loads_and_computes(environment: Path) -> None:
    ran = _python(environment, _CALL)
    assert ran.stderr == ""
    assert ran.stdout == "1.0000 2.7183 False\n"
