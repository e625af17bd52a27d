"""`dlinfer doctor`: who serves what, and what is wrong with the settings."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec

import pytest
from forked_python import run_python
from typer.testing import CliRunner

from dlinfer.cli import app
from dlinfer.reference import KERNELS
from dlinfer.vendors import Vendor, using

pytestmark = pytest.mark.unit


def test_doctor_says_who_serves_what() -> None:
    with using(Vendor("partial", "7.1", {"rms_norm": KERNELS["rms_norm"]}, devices=("cpu",), priority=5)):
        result = CliRunner().invoke(app, ["doctor", "--device", "cpu", "--json"])
    assert result.exit_code == 0
    said = json.loads(result.output)
    assert said["served"]["cpu"]["rms_norm"] == "partial" and said["served"]["cpu"]["linear"] == "ref"
    assert {"name": "partial", "version": "7.1", "devices": ["cpu"], "kernels": 1, "problem": ""} in said[
        "vendors"
    ]
    plain = CliRunner().invoke(app, ["doctor"])
    assert (
        "DLINFER_LINEAR_USE_NN_LAYOUT=(not set): 1: weights of linear layers are stored [in, out]"
        in plain.output
    )


def test_doctor_prints_json_alone_and_leaves_the_names_of_cuda() -> None:
    """In a process of its own, with the devices that are here."""
    code = """
import sys
from dlinfer.cli import app
app(["doctor", "--json"], standalone_mode=False)
assert "ditorch" not in sys.modules
"""
    out = run_python("-c", code, check=True, timeout=300)
    said = json.loads(out.stdout)
    assert said["served"]["cpu"]["linear"] == "cpp" and said["problems"] == []
    assert list(said["served"])[1:] == (["dipu"] if find_spec("torch_dipu") else [])


@pytest.mark.parametrize(
    "setting",
    [
        "VENDOR=nobody",
        "CHECK=yes",
        "DEVICE=gpu",
        "CPU_MEMORY=much",
        "GRAPH_BACKEND=none_such",
        "VLLM_DEVICE=gpu",
        "LINEAR_USE_NN_LAYOUT=yes",
    ],
)
def test_doctor_names_a_setting_that_cannot_be_followed(
    monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    name, value = f"DLINFER_{setting}".split("=")
    monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, ["doctor", "--device", "cpu", "--json"])
    (problem,) = json.loads(result.output)["problems"]
    assert result.exit_code == 1 and name in problem and value in problem


@pytest.mark.parametrize("setting", ["CACHE_LAYOUT=BDSN", "CPP_LEVEL=avx3"])
def test_doctor_names_a_setting_that_is_read_once(setting: str) -> None:
    name, value = f"DLINFER_{setting}".split("=")
    command = ["-m", "dlinfer", "doctor", "--device", "cpu"]
    out = run_python(*command, env={**os.environ, name: value}, timeout=300)
    (problem,) = [line for line in out.stdout.splitlines() if line.startswith("problem: ")]
    assert out.returncode == 1 and name in problem and value in problem


def test_doctor_notes_a_variable_that_is_none_of_its(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLINFER_VENDR", "ref")
    said = json.loads(CliRunner().invoke(app, ["doctor", "--device", "cpu", "--json"]).output)
    assert said["problems"] == [] and "DLINFER_VENDR" not in said["settings"]
    assert said["notes"] == [
        "DLINFER_VENDR is set but is no setting of this version. Did you mean 'DLINFER_VENDOR'?"
    ]


def test_doctor_knows_torch_s_devices_only() -> None:
    result = CliRunner().invoke(app, ["doctor", "--device", "nonsense"])
    assert result.exit_code == 2 and "--device nonsense: Expected one of cpu" in result.stderr
