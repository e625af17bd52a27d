"""A device that a case breaks for good costs that case, and none behind it."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
import torch

from dicore.conformance.case_filter import CaseFilter
from dicore.conformance.results import CaseResult, RunReport
from dicore.conformance.runner import RunOptions, run_suite
from diopi.conformance.device_health import DeviceHealth
from diopi.conformance.diopi_case import DiopiCase
from diopi.conformance.own_source import OwnSource
from diopi.conformance.suite import DiopiSuite
from diopi.library import LibraryMemory
from diopi.vendors.published.sources import FOLDER as PUBLISHED

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).parent


def _built(target: Path, flags: Sequence[str] = ()) -> Path:
    include = [f"-I{FOLDER.parents[1] / 'include'}", f"-I{PUBLISHED / 'runtime'}"]
    command = ["g++", "-std=c++17", "-Wall", "-Werror", "-shared", "-fPIC", '-DPUBLISHED_NAME="sticky"']
    subprocess.run(
        [*command, *include, *flags, "-o", str(target), str(FOLDER / "sticky_vendor.cpp")], check=True
    )
    return target


def _report(library: Path) -> RunReport:
    wanted = CaseFilter(frozenset({"diopiSin", "diopiNeg"}), frozenset({"float64", "float32"}))
    return run_suite(DiopiSuite(library, [OwnSource()]), RunOptions(wanted, workers=1))


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ([], "allocating device memory failed: an illegal memory access was encountered"),
        (["-DSTICKY_QUIETLY"], "which has passed, fails now"),
    ],
    ids=["everything answers with the error", "operators compute nonsense"],
)
def test_only_the_guilty_cases_fail(tmp_path: Path, flags: list[str], problem: str) -> None:
    report = _report(_built(tmp_path / "libsticky.so", flags))
    failed = {(r.function, r.label): r.reason for r in report.failures()}
    assert {function for function, _ in failed} == {"diopiSin"} and len(failed) == 2
    assert {label for _, label in failed} == {"", "expanded"}
    for reason in failed.values():
        assert reason.startswith("returned error code 1: the launch failed")
        assert problem in reason and "so a new process goes on" in reason
    others = [r for r in report.results if r.status != "fail"]
    assert {r.status for r in others if r.dtype == "float32"} == {"pass"}
    assert len([r for r in others if r.dtype == "float32"]) > 20
    assert {r.status for r in others if r.dtype == "float64"} == {"unsupported"}


def test_a_case_without_elements_says_nothing_of_the_device() -> None:
    dead: list[str] = []

    def run(case: DiopiCase) -> CaseResult:
        return case.result("fail" if dead and "empty" not in case.id else "pass")

    health = DeviceHealth(cast(LibraryMemory, _Memory()), run)
    cases = {
        name: DiopiCase(f"own:diopiSin:{name}", "diopiSin", "float32", arguments={"input": torch.ones(size)})
        for name, size in {"some": 5, "one": 1, "empty": 0}.items()
    }
    for case in cases.values():
        assert health.problem_after(case, case.result("pass")) == ""
    dead.append("now")
    problem = health.problem_after(cases["some"], cases["some"].result("fail"))
    assert problem.startswith("own:diopiSin:some, which has passed, fails now")


class _Memory:
    """That of a device which has forgotten how to compute, not how to copy."""

    held = b""

    def allocate(self, size: int) -> int:
        return 1

    def write(self, pointer: int, source: int, size: int) -> None:
        self.held = ctypes.string_at(source, size)

    def read(self, pointer: int, target: int, size: int) -> None:
        ctypes.memmove(target, self.held, size)

    def synchronize(self) -> None: ...

    def free(self, pointer: int) -> None: ...
