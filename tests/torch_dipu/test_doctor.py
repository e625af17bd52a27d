"""The program `dipu doctor`."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from forked_python import run_python

pytestmark = pytest.mark.device

_OURS = ("DIPU_", "DITORCH_", "TORCH_DEVICE_BACKEND_AUTOLOAD")


def dipu(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return run_python("-m", "dipu", *arguments, env=environment | settings, timeout=300)


@pytest.fixture(scope="module", autouse=True)
def _needs_the_device() -> None:
    result = run_python("-c", "import torch_dipu", timeout=300)
    if result.returncode:
        pytest.skip(f"torch_dipu cannot be imported: {result.stderr.strip().splitlines()[-1]}")


def test_findings_as_json() -> None:
    result = dipu("doctor", "--json", DIPU_HOST_DEVICES="3", DIPU_HOST_MEMORY="512M", DIPU_DEVCE="x")
    assert result.returncode == 0, result.stdout + result.stderr
    findings = json.loads(result.stdout)
    assert findings["ok"] is True
    assert findings["versions"]["torch_dipu"] == "0.1.0"
    assert findings["vendor"]["operators"] > 0
    assert findings["vendor"]["devices"] == 3
    assert [device["device"] for device in findings["devices"]] == ["dipu:0", "dipu:1", "dipu:2"]
    assert {device["total_memory"] for device in findings["devices"]} == {512 << 20}
    settings = {setting["name"]: setting for setting in findings["settings"]}
    assert settings["DIPU_HOST_DEVICES"]["value"] == "3"
    assert settings["DIPU_MOCK_CUDA"]["is_set"] is False
    assert settings["DIPU_DEVCE"]["known"] is False
    assert any("Did you mean 'DIPU_DEVICE'?" in remark for remark in findings["remarks"])
    checks = {check["name"]: check["ok"] for check in findings["checks"]}
    assert set(checks.values()) == {True}
    assert {"add", "matmul", "autograd", "stream", "memory is counted", "random numbers"} <= set(checks)


def test_readable_at_100_columns() -> None:
    result = dipu("doctor", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert result.returncode == 0, result.stdout + result.stderr
    assert max(len(line) for line in result.stdout.splitlines()) <= 100
    for text in ("Versions", "Vendor", "Devices", "Settings", "What works", "All fine."):
        assert text in result.stdout
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in result.stdout
    assert "ditorch.framework" not in result.stdout


@pytest.mark.parametrize("vendor", ["no_such_vendor", "/no/such/library.so"])
def test_a_vendor_that_is_not_there(vendor: str) -> None:
    result = dipu("doctor", "--json", DIPU_DEVICE=vendor)
    assert result.returncode == 1, result.stdout + result.stderr
    findings = json.loads(result.stdout)
    problem = findings["problems"][0]
    assert vendor in problem["what"]
    assert "installed vendors: " in problem["advice"]
    assert "host" in problem["advice"]
    assert findings["settings"]


def test_wrong_usage_is_code_2() -> None:
    assert dipu("doctor", "--yaml").returncode == 2
