"""A kernel that ends the process, or never ends: its cases fail, and the others have their results."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forked_python import run_python

from dicore.conformance.case_filter import QUICK_CASES
from dicore.conformance.report_files import read_json
from dicore.conformance.results import CaseResult

pytestmark = pytest.mark.unit

VENDOR = """
import os, sys, time
import torch
from dlinfer.reference import KERNELS
from dlinfer.vendors import Vendor

def silu_and_mul(x, dim=-1):
    if x.dtype == torch.float16:
        print("silu: out of luck", file=sys.stderr, flush=True)
        os.abort()
    return KERNELS["silu_and_mul"](x, dim)

def linear(*arguments):
    os._exit(3)

def get_cache_len(*arguments):
    time.sleep(600)

OWN = {"silu_and_mul": silu_and_mul, "linear": linear, "get_cache_len": get_cache_len, "rms_norm": KERNELS["rms_norm"]}
VENDOR = Vendor("hasty", "1.0", OWN)
"""


@pytest.fixture
def vendor(tmp_path: Path) -> Path:
    """The folder of an installed package with the vendor."""
    (tmp_path / "hasty.py").write_text(VENDOR)
    folder = tmp_path / "hasty-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: hasty\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[dlinfer.vendors]\nhasty = hasty:VENDOR\n")
    return tmp_path


def _results(vendor: Path, *words: str) -> list[CaseResult]:
    out = vendor / "out.json"
    command = ["-m", "dlinfer", "conformance", "--vendor", "hasty", "--json", str(out), *words]
    paths = [str(vendor), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    run = run_python(*command, env=environment, timeout=200)
    assert run.returncode == 1, run.stderr
    return read_json(out).results


def test_crashes_are_results(vendor: Path) -> None:
    results = _results(vendor, "--quick", "-o", "silu_and_mul,linear,rms_norm")
    by_operator = {
        name: [result for result in results if result.function == name]
        for name in ("silu_and_mul", "linear", "rms_norm")
    }
    assert {result.status for result in by_operator["rms_norm"]} == {"pass"}
    bad = [result for result in by_operator["silu_and_mul"] if result.dtype == "float16"]
    good = [result for result in by_operator["silu_and_mul"] if result.dtype != "float16"]
    assert {result.reason for result in bad} == {"crashed (signal 6, SIGABRT): silu: out of luck"}
    assert {result.status for result in good} == {"pass"} and len(good) + len(bad) == QUICK_CASES
    reasons = [result.reason for result in by_operator["linear"]]
    left = QUICK_CASES - 3 - 1
    assert reasons == ["ended with exit code 3"] * 3 + [f"not run, and {left} more: linear ended 3 processes"]


def test_a_kernel_that_never_ends_is_a_result(vendor: Path) -> None:
    (result,) = _results(vendor, "--case", "own:get_cache_len:0", "--timeout", "1")
    assert result.status == "fail" and result.reason == "timed out after 1 s"


@pytest.mark.device
def test_the_other_process_has_the_device_too(vendor: Path) -> None:
    pytest.importorskip("torch_dipu")
    (result,) = _results(vendor, "--case", "own:linear:0", "--device", "dipu")
    assert result.reason == "ended with exit code 3"
