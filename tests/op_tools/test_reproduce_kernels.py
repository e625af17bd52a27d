"""Twelve wrong kernels, each from a captured training step to a file that fails with it and passes without it."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import pytest
from forked_python import run_python
from wrong_kernels import WRONG, aten_name

from op_tools.reproduce import ReproduceOptions, Reproduction, find_call, write
from op_tools.reproduce.write import is_wrong

HERE = Path(__file__).resolve().parent
CAPTURE = """
import sys
import torch_dipu, op_tools, small_llama, wrong_kernels
for name in wrong_kernels.WRONG:
    library = wrong_kernels.install(name)
    with op_tools.OpCapture(level="aten", list=wrong_kernels.aten_name(name), results=f"{sys.argv[1]}/{name}"):
        small_llama.train("dipu", 1)
    library._destroy()
"""
# Comes in from outside: the file knows nothing of it.
WITH_WRONG_KERNEL = f"""
import runpy, sys
sys.path.append({str(HERE)!r})
import wrong_kernels
wrong_kernels.install(sys.argv[1])
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reproduction]:
    """One file per kernel, of the first captured call that is wrong."""
    root = tmp_path_factory.mktemp("kernels")
    environment = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
    run_python("-c", CAPTURE, str(root), env=environment, check=True, timeout=200)
    files = {}
    for name in WRONG:
        item = find_call(aten_name(name), root / name, is_wrong)
        files[name] = write(ReproduceOptions(item, root / f"{name}.py", verify=False))
    return files


def test_every_file_names_its_operator_and_is_small(made: dict[str, Reproduction]) -> None:
    assert [file.operator for file in made.values()] == [aten_name(name) for name in WRONG]
    assert all(file.wrong for file in made.values())
    assert statistics.median(file.nbytes for file in made.values()) < 4_000_000
    assert not any("op_tools" in file.path.read_text().partition('"""\n\nfrom')[2] for file in made.values())


@pytest.mark.parametrize("name", WRONG)
def test_fails_with_the_wrong_kernel_and_passes_without(name: str, made: dict[str, Reproduction]) -> None:
    path = made[name].path
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OP_", "DITORCH_"))}
    environment["OMP_NUM_THREADS"] = "1"
    bad = run_python("-c", WITH_WRONG_KERNEL, name, path, env=environment)
    assert bad.returncode == 1, bad.stdout + bad.stderr
    assert f"{aten_name(name)} on dipu" in bad.stdout
    assert "output: WRONG: " in bad.stdout
    good = run_python(path, env=environment)
    assert good.returncode == 0, good.stdout + good.stderr
    assert "0 of 1 values are wrong" in good.stdout
