"""The folder test/: a file for each operator, scripts that say what is missing, and a sample of what they run."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from dicp.conformance.declaration import OPERATORS
from dicp.conformance.operator_cases import OperatorSource

pytestmark = pytest.mark.unit

TEST_DIR = Path(__file__).resolve().parents[2] / "test"
BACKENDS = {"ascend": "ascendgraph", "tops": "topsgraph", "host": "hostgraph", "triton": "tritongraph"}


def run(script: str, *arguments: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """With this Python as the first on PATH."""
    given = {
        "TEST_DIR": str(TEST_DIR),
        "OMP_NUM_THREADS": "1",
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
        **variables,
    }
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "DICP_"))}
    kept |= {name: value for name, value in given.items() if value is not None}
    kept["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]])
    return subprocess.run(
        ["bash", str(TEST_DIR / script), *arguments], env=kept, capture_output=True, text=True, check=False
    )


def test_every_declared_operator_has_its_file():
    OperatorSource()
    files = {path.stem.removeprefix("test_") for path in (TEST_DIR / "op").glob("test_*.py")}
    assert files == set(OPERATORS) and len(files) >= 110


@pytest.mark.parametrize("vendor", BACKENDS)
@pytest.mark.parametrize("kind", ["ops", "models"])
def test_scripts_say_what_is_missing(vendor, kind):
    script = f"{vendor}_scripts/{kind}/run_test_{kind}.sh"
    assert f" {BACKENDS[vendor]} " in (TEST_DIR / script).read_text()
    missing = run(script, "false", TEST_DIR=None)
    assert missing.returncode == 1 and missing.stderr.strip() == "TEST_DIR is not defined!"
    wrong = run(script, "maybe")
    assert wrong.returncode == 1 and wrong.stderr.strip() == "DYNAMIC should in (true, false, all)"
    for mode in ("static", "dynamic"):
        assert (TEST_DIR / script).with_name(f"{mode}.ini").exists()


def test_the_script_of_one_model_says_what_is_missing():
    for script in ("model/run_test_model.sh", "model/run_test_models.sh"):
        assert "TEST_DIR is not defined!" in run(script, "llama", "hostgraph", "false", TEST_DIR=None).stderr
        assert "there is no model 'lama'" in run(script, "lama", "hostgraph", "false").stderr
        assert "DYNAMIC should in" in run(script, "llama", "hostgraph", "no").stderr
    unknown = run("model/run_test_model.sh", "llama", "nosuchgraph", "false", "-q")
    assert unknown.returncode != 0 and "there is no backend 'nosuchgraph'" in unknown.stdout + unknown.stderr


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("vendor", "mode"), [("ascend", "all"), ("tops", "false"), ("triton", "false")])
def test_operators(vendor, mode):
    if vendor == "triton" and find_spec("triton") is None:
        pytest.skip("triton is not installed")
    found = run(
        f"{vendor}_scripts/ops/run_test_ops.sh", mode, "-q", "-k", "test_mm and float32", TRITON_INTERPRET="1"
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count(" passed") == (2 if mode == "all" else 1) and "skipped" not in found.stdout


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_model():
    found = run("model/run_test_model.sh", "stable_diffusion", "hostgraph", "false", "-q", "-k", "inference")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "1 passed" in found.stdout


def test_inference_only():
    found = run(
        "model/run_test_model.sh", "llama", "hostgraph", "false", "-q", "-k", "training", TEST_DICP_INFER="1"
    )
    assert "1 skipped" in found.stdout, found.stdout


@pytest.mark.device
@pytest.mark.parametrize(
    ("variables", "device"),
    [
        ({}, "cpu"),
        ({"DICP_TOPS_DIPU": "True"}, "dipu:0"),
        ({"DICP_TOPS_DIPU": "True", "DIPU_MOCK_CUDA": "True"}, "cuda:0"),
        ({"DICP_TOPS_DIPU": "True", "DIPU_MOCK_CUDA": "false"}, "dipu:0"),
        ({"DICP_TOPS_DIPU": "False"}, "cpu"),
    ],
)
def test_the_device_of_tests(variables, device):
    script = "from test.common.utils import get_device, torch; d = get_device(); print(d, torch.ones(2, device=d).sum().item())"
    kept = {k: v for k, v in os.environ.items() if k not in ("DICP_TOPS_DIPU", "DIPU_MOCK_CUDA")}
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=TEST_DIR.parent,
        env=kept | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.split()[-2:] == [device, "2.0"], ran.stderr
