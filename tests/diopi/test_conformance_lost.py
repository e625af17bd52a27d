"""Workers that die between cases, sources that raise, libraries that vanish: the run goes on and says what is missing."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from diopi.conformance.case import Case
from diopi.conformance.case_files_source import CaseFileSource
from diopi.conformance.results import Result
from diopi.conformance.runner import Report, Request, Runner
from diopi.conformance.selection import Selection
from diopi.conformance.source import Source

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("lost") / "libfaulty.so"
    command = [
        "gcc",
        "-std=gnu11",
        "-shared",
        "-fPIC",
        f"-I{FOLDER.parents[1] / 'include'}",
        "-o",
        str(target),
    ]
    subprocess.run([*command, str(FOLDER / "faulty_vendor.c"), "-lm"], check=True)
    return target


@dataclass
class Trap:
    """Groups of right cases, four of each; before case 2 of a group whose name says so something happens."""

    groups_: tuple[str, ...]
    folder: Path
    name: str = "trap"

    def groups(self, functions: frozenset[str] | None) -> list[str]:
        return list(self.groups_)

    def cases(self, group: str) -> Iterator[Case]:
        for number in range(4):
            if number == 2:
                self._spring(group)
            function, x = "diopiNeg", torch.ones(3)
            if group == "unwritten":
                function, x = "diopiLogicalNot", torch.zeros(3)
            yield Case(f"{self.name}:{group}:{number}", function, {"input": x}, "float32")

    def _spring(self, group: str) -> None:
        mark = self.folder / "crashed"
        if group == "always" or (group == "once" and not mark.exists()):
            mark.touch()
            os._exit(3)
        if group == "raises":
            raise ValueError("no such sample")


class Resumable(Trap):
    """Its iterator can be asked again after an error."""

    def cases(self, group: str) -> Iterator[Case]:
        return map(self._case, (group,) * 4, range(4))

    def _case(self, group: str, number: int) -> Case:
        if number == 1:
            raise ValueError("no such sample")
        return Case(f"{self.name}:{group}:{number}", "diopiNeg", {"input": torch.ones(3)}, "float32")


def _run(
    library: Path,
    source: Source,
    progress: Callable[[Result | None, int, int], None] | None = None,
    selection: Selection | None = None,
) -> Report:
    return Runner(Request(library, selection or Selection(), [source], workers=1), progress).run()


def _short(report: Report) -> list[tuple[str, str, str]]:
    return [(r.id.partition(":")[2], r.function, r.status) for r in report.results]


def _passed(group: str, *numbers: int) -> list[tuple[str, str, str]]:
    return [(f"{group}:{number}", "diopiNeg", "pass") for number in numbers]


def test_a_process_that_dies_between_cases_loses_none_of_them(built: Path, tmp_path: Path) -> None:
    report = _run(built, Trap(("once", "plain"), tmp_path))
    failed = [("once:1", "diopiNeg", "fail")]
    assert _short(report) == [
        *_passed("once", 0),
        *failed,
        *_passed("once", 2, 3),
        *_passed("plain", *range(4)),
    ]
    said = report.failures()[0].reason
    assert said == "after case trap:once:1, before the next began: ended the process (exit code 3)"


def test_a_group_is_given_up_after_a_second_crash_at_the_same_place(built: Path, tmp_path: Path) -> None:
    done: list[int] = []
    report = _run(
        built, Trap(("always", "plain"), tmp_path), lambda result, groups, total: done.append(groups)
    )
    failed = [("always:1", "diopiNeg", "fail"), ("always:2", "diopiNeg", "fail")]
    assert _short(report) == [*_passed("always", 0), *failed, *_passed("plain", *range(4))]
    assert report.failures()[1].reason == (
        "ended the process (exit code 3) 2 times behind trap:always:1; from here on the group was not run"
    )
    assert done[-1] == 2


def test_an_error_of_a_source_costs_one_case_or_says_what_is_missing(built: Path, tmp_path: Path) -> None:
    report = _run(built, Trap(("raises", "plain"), tmp_path))
    failed = [("raises:2", "diopiNeg", "fail")]
    assert _short(report) == [*_passed("raises", 0, 1), *failed, *_passed("plain", *range(4))]
    said = report.failures()[0].reason
    assert "the suite raised ValueError: no such sample" in said
    assert said.endswith("from trap:raises:2 on nothing was run")
    for selection in (Selection(), Selection(quick=9)):
        again = _run(built, Resumable(("some",), tmp_path), selection=selection)
        assert _short(again) == [*_passed("some", 0), ("some:1", "diopiNeg", "fail"), *_passed("some", 2, 3)]
        assert "nothing was run" not in again.failures()[0].reason
    alone = _run(built, Resumable(("some",), tmp_path), selection=Selection(case="trap:some:3"))
    assert _short(alone) == _passed("some", 3)


def test_a_library_that_cannot_be_opened_again_fails_what_is_left(built: Path, tmp_path: Path) -> None:
    library = tmp_path / "libfaulty.so"
    shutil.copy(built, library)

    def vanish(result: Result | None, done: int, total: int) -> None:
        library.unlink(missing_ok=True)

    report = _run(library, Trap(("once", "plain"), tmp_path), vanish)
    assert _short(report) == [
        *_passed("once", 0),
        ("once:1", "diopiNeg", "fail"),
        ("once:2", "diopiNeg", "fail"),
        ("plain:0", "plain", "fail"),
    ]
    assert all("libfaulty.so" in r.reason and r.reason.startswith("not run: ") for r in report.failures()[1:])
    assert report.vendor == "faulty" and report.exit_code == 1


def test_a_process_that_is_gone_when_it_gets_a_group_is_replaced(built: Path, tmp_path: Path) -> None:
    killed = []

    def kill(result: Result | None, done: int, total: int) -> None:
        if result is None and not killed:
            for child in multiprocessing.active_children():
                killed.append(child.pid)
                child.kill()
                child.join()

    report = _run(built, Trap(("one", "two"), tmp_path), kill)
    assert killed and _short(report) == [*_passed("one", *range(4)), *_passed("two", *range(4))]


def test_booleans_that_are_right_only_because_nobody_wrote_them_fail(built: Path, tmp_path: Path) -> None:
    report = _run(built, Trap(("unwritten",), tmp_path))
    assert {r.reason for r in report.results} == {"left 3 of 3 elements of out unwritten"}
    assert {r.status for r in report.results} == {"fail"} and len(report.results) == 4


def test_what_torch_refuses_is_skipped_with_its_words(built: Path, tmp_path: Path) -> None:
    path = tmp_path / "cases.py"
    path.write_text(
        "a = dict(name=['neg'], interface=['torch'],"
        " tensor_para=dict(args=[dict(ins=['input'], shape=[(2,), (3,)], dtype=['float32', 'bool'])]))\n"
    )
    report = _run(built, CaseFileSource(path))
    found = [(r.id, r.function, r.dtype, r.status) for r in report.results]
    kinds = (("float32", "pass"), ("bool", "skipped"))
    assert sorted((d, s) for _, _, d, s in found) == sorted([*kinds, *kinds])
    assert {f for _, f, _, _ in found} == {"diopiNeg"}
    assert sorted(i for i, _, _, _ in found) == [f"file:a::neg:{number}" for number in range(4)]
    said = {r.reason for r in report.results if r.status == "skipped"}
    assert len(said) == 1 and said.pop().startswith(
        "PyTorch refuses neg on the CPU: Negation, the `-` operator, on a bool"
    )
