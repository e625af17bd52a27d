"""Twelve wrong kernels, each from a captured training step to a file that fails with it and passes without it."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
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
SITE = f"""
import os, sys
if os.environ.get("WRONG_KERNEL"):
    sys.path.append({str(HERE)!r})
    import wrong_kernels
    wrong_kernels.install(os.environ["WRONG_KERNEL"])
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reproduction]:
    """One file per kernel, of the first captured call that is wrong."""
    root = tmp_path_factory.mktemp("kernels")
    (root / "site").mkdir()
    (root / "site" / "sitecustomize.py").write_text(SITE)
    environment = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-c", CAPTURE, str(root)],
        env=environment,
        check=True,
        capture_output=True,
        timeout=200,
    )
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
    environment |= {"PYTHONPATH": str(path.parent / "site"), "OMP_NUM_THREADS": "1"}
    runs = [
        subprocess.Popen(
            [sys.executable, str(path)],
            env=environment | extra,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for extra in ({"WRONG_KERNEL": name}, {})
    ]
    (bad, bad_errors), (good, good_errors) = (run.communicate(timeout=200) for run in runs)
    assert runs[0].returncode == 1, bad + bad_errors
    assert f"{aten_name(name)} on dipu" in bad
    assert "output: WRONG: " in bad
    assert runs[1].returncode == 0, good + good_errors
    assert "0 of 1 values are wrong" in good
