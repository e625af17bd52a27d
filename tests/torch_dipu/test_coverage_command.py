"""`dipu coverage` and its figures where something is asked for, missing or wrong."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from forked_python import run_python

import torch_dipu  # noqa: F401
from torch_dipu.coverage import Coverage


def coverage(
    folder: Path, program: str, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    script = folder / "step.py"
    script.write_text("import torch\nx = torch.ones(64, 64, device='dipu')\n" + program)
    return run_python(
        "-m",
        "dipu",
        "coverage",
        *options,
        str(script),
        timeout=120,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", **environment},
    )


@pytest.mark.parametrize("wrong", ["-1", "100.5", "1000", "nan"])
def test_a_share_that_cannot_be_is_refused(tmp_path: Path, wrong: str) -> None:
    done = coverage(tmp_path, "print('ran')\n", "--at-least", wrong)
    assert done.returncode == 2
    assert f"dipu coverage: --at-least {wrong}: expected a percentage from 0 to 100" in done.stderr
    assert "ran" not in done.stdout


def test_a_share_that_is_met(tmp_path: Path) -> None:
    done = coverage(tmp_path, "x + x\n", "--at-least", "100")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_script_written_for_cuda_and_a_module_need_no_option(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "__init__.py").touch()
    (tmp_path / "model" / "train.py").write_text(
        "import sys, torch\nx = torch.ones(4, device='cuda')\n(x + x).cuda()\nprint(__package__, sys.argv[1:])\n"
    )
    for words, said in ((["-m", "model.train"], "model"), (["model/train.py"], "None")):
        done = run_python(
            "-m", "dipu", "coverage", "--at-least", "100", *words, "--lr", "1", cwd=tmp_path, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{said} ['--lr', '1']" in done.stdout and "100.0% by DIOPI" in done.stdout
    refused = run_python(
        "-m", "dipu", "coverage", "--no-ditorch", "model/train.py", cwd=tmp_path, timeout=120
    )
    assert refused.returncode == 1 and "CUDA" in refused.stderr


@pytest.mark.parametrize(
    ("end", "code", "shown"),
    [
        ("raise ValueError('the reason')", 1, "ValueError: the reason"),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('no data')", 1, "no data"),
    ],
)
def test_a_program_that_fails(tmp_path: Path, end: str, code: int, shown: str) -> None:
    json_file = tmp_path / "figures.json"
    done = coverage(tmp_path, f"x + x\n{end}\n", "--at-least", "100", "--json", str(json_file))
    assert done.returncode == code
    assert shown in done.stderr
    assert f"the program ended with exit code {code}; the figures are of what ran before" in done.stdout
    assert "expected at least" not in done.stdout
    assert json.loads(json_file.read_text())["exit_code"] == code


def test_a_program_that_fails_before_it_uses_the_device(tmp_path: Path) -> None:
    script = tmp_path / "early.py"
    script.write_text("import torch\nimport no_such_module\n")
    command = ["-m", "dipu", "coverage", str(script)]
    done = run_python(*command)
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'no_such_module'" in done.stderr
    assert "exit code 1; no operator had run on the device" in done.stdout
    assert "does the program use" not in done.stdout


def test_a_program_that_is_no_python(tmp_path: Path) -> None:
    done = coverage(tmp_path, "def (:\n")
    assert done.returncode == 2
    assert "SyntaxError" in done.stderr and "it was not run" in done.stderr


@pytest.mark.parametrize("settings", [{"DIPU_DEVICE": "nochip"}, {"DIPU_ADAPTOR_CONFIG": "/no/rules.yaml"}])
def test_without_a_vendor_nothing_is_run(tmp_path: Path, settings: dict[str, str]) -> None:
    done = coverage(tmp_path, "print('ran')\n", **settings)
    assert done.returncode == 2
    assert "dipu coverage: there is no device to run on: " in done.stderr
    assert next(iter(settings.values())) in done.stderr
    assert "Traceback" not in done.stderr and "ran" not in done.stdout


def test_a_file_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    done = coverage(tmp_path, "print('ran')\n", "--json", str(tmp_path / "no" / "figures.json"))
    assert done.returncode == 2
    assert "cannot be written" in done.stderr and "ran" not in done.stdout


def test_a_forced_fallback_is_counted_with_its_reason_and_cost(tmp_path: Path) -> None:
    json_file = tmp_path / "figures.json"
    done = coverage(
        tmp_path,
        "for _ in range(4): x @ x\nx + 1\n",
        "--json",
        str(json_file),
        DIPU_FORCE_FALLBACK_OPS_LIST="matmul",
        DIPU_HOST_ALIAS="0",
    )
    assert done.returncode == 0, done.stderr
    assert "DIPU_FORCE_FALLBACK_OPS_LIST names it (4 calls)" in done.stdout
    (mm,) = (o for o in json.loads(json_file.read_text())["operators"] if o["name"] == "aten::mm")
    assert (mm["diopi_calls"], mm["copy_calls"]) == (0, 4)
    assert mm["asked"] == {"DIPU_FORCE_FALLBACK_OPS_LIST": 4}
    assert mm["copied_bytes"] >= 4 * 2 * 64 * 64 * 4
    assert mm["fallback_seconds"] > 0


def test_reasons_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(4, device="dipu")
    flags = x.bool()
    with Coverage() as found:
        x + x
        x + 1
        flags + flags
        monkeypatch.setenv("DIPU_FORCE_FALLBACK_OPS_LIST", "add.Scalar,sub")
        x + 1
        x - x
        torch.linalg.det(x.reshape(2, 2))
        monkeypatch.setenv("DIPU_WITH_DIOPI_LIBRARY", "DISABLE")
        x + x
        monkeypatch.delenv("DIPU_WITH_DIOPI_LIBRARY")
    reasons = {o.name: o.reason for o in found.operators}
    assert reasons["aten::sub.Tensor"] == "DIPU_FORCE_FALLBACK_OPS_LIST names it (1 call)"
    assert reasons["aten::_linalg_det"] == "no DIOPI function"
    add = reasons["aten::add.Tensor"]
    assert "DIPU_FORCE_FALLBACK_OPS_LIST names it (1 call)" in add
    assert "DIPU_WITH_DIOPI_LIBRARY=DISABLE (1 call)" in add
    with Coverage() as later:
        x + x
    assert [o.reason for o in later.operators] == [""]
