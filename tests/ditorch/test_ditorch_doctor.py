"""The program `ditorch doctor`."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from forked_python import run_python

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("run_python")]


def _doctor(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("DITORCH_", "DIPU_"))
    }
    return run_python("-m", "ditorch", *arguments, env=environment | settings, timeout=300)


def test_findings_as_json() -> None:
    result = _doctor("doctor", "--json")
    findings = json.loads(result.stdout)
    assert result.returncode == 0, result.stdout
    assert findings["ok"] is True
    assert findings["problems"] == []
    assert findings["framework"].startswith("torch_dipu:0.1.0 (")
    assert findings["mapping"] == "on: 'cuda' means 'dipu'"
    assert findings["process_group"] == "dicl"
    states = {adapter["name"]: adapter["state"] for adapter in findings["adapters"]}
    assert list(states) == ["npu", "mlu", "musa", "supa", "xpu", "cuda", "mps", "dipu"]
    assert (states["dipu"], states["npu"]) == ("chosen", "not installed")
    assert all(adapter["advice"] for adapter in findings["adapters"] if not adapter["chosen"])
    assert [adapter["name"] for adapter in findings["adapters"] if adapter["chosen"]] == ["dipu"]
    assert [device["device"] for device in findings["devices"]][:1] == ["dipu:0"]
    assert findings["devices"][0]["total_memory"] > 0
    names = {check["name"] for check in findings["checks"] if check["ok"]}
    assert {"add", "matmul", "autograd", "stream", "copy back", "cuda names"} <= names


def test_readable_at_100_columns() -> None:
    result = _doctor("doctor")
    assert result.returncode == 0
    assert max(len(line) for line in result.stdout.splitlines()) <= 100
    for text in (
        "Versions",
        "Frameworks",
        "not installed",
        "'nccl' means 'dicl'",
        "torch_dipu:0.1.0",
        "What works",
        "All fine.",
    ):
        assert text in result.stdout


def test_an_unknown_device_is_reported_not_raised() -> None:
    result = _doctor("doctor", DITORCH_DEVICE="abacus")
    assert result.returncode == 1
    assert "DITORCH_DEVICE='abacus'" in result.stdout
    assert "To do:" in result.stdout
    assert "Traceback" not in result.stderr


def test_a_framework_that_is_not_installed_is_a_problem() -> None:
    result = _doctor("doctor", "--json", DITORCH_DEVICE="npu")
    assert result.returncode == 1
    findings = json.loads(result.stdout)
    assert findings["problems"][0]["what"] == "torch_npu is not installed (DITORCH_DEVICE=npu)"
    assert "pip install torch-npu" in findings["problems"][0]["advice"]
    assert (findings["framework"], findings["checks"]) == ("", [])


def test_settings_without_effect_are_noted() -> None:
    findings = json.loads(
        _doctor(
            "doctor", "--json", DITORCH_DISABLE_MOCK="maybe", DITORCH_DEVCE="x", CUDA_VISIBLE_DEVICES="1"
        ).stdout
    )
    assert findings["ok"] is True
    assert "DITORCH_DISABLE_MOCK: expected 1 or 0, got 'maybe'; it is ignored" in findings["notes"][0]
    assert "CUDA_VISIBLE_DEVICES=1 has no effect on torch_dipu" in findings["notes"][1]
    assert (
        "DITORCH_DEVCE is set but is no setting of this version. Did you mean 'DITORCH_DEVICE'?"
        in findings["notes"]
    )


def test_a_framework_that_cannot_work_here_is_a_problem() -> None:
    import torch

    if torch.backends.cuda.is_built():
        pytest.skip("this torch has cuda")
    result = _doctor("doctor", "--json", DITORCH_DEVICE="cuda")
    assert result.returncode == 1
    findings = json.loads(result.stdout)
    assert "built without cuda" in findings["problems"][0]["what"]
    assert findings["problems"][0]["advice"]


def test_a_vendor_that_is_not_there_is_a_problem() -> None:
    result = _doctor("doctor", "--json", DIPU_DEVICE="no_such_vendor")
    assert result.returncode == 1
    problem = json.loads(result.stdout)["problems"][0]
    assert "no_such_vendor" in problem["what"]
    assert "DIPU_DEVICE" in problem["advice"]


def test_switched_off_mapping_is_shown() -> None:
    findings = json.loads(_doctor("doctor", "--json", DITORCH_DISABLE_MOCK="1").stdout)
    assert findings["mapping"].startswith("off")
    assert "cuda names" not in {check["name"] for check in findings["checks"]}


def test_wrong_usage_is_code_2() -> None:
    assert _doctor("doctor", "--yaml").returncode == 2
