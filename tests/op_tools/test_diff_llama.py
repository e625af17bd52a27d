"""A small llama captured twice: the wrong kernel is named, rounding is not blamed, extra calls shift nothing."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from captures import TOOLS
from forked_python import run_python
from wrong_kernels import WRONG, aten_name

from op_tools.diff.compare import compare_captures, open_either
from op_tools.diff.printing import headline, next_step
from op_tools.diff.report import Report
from op_tools.diff.sequence import shapes_of

pytestmark = [pytest.mark.device, pytest.mark.slow]

LLAMA = Path(__file__).with_name("small_llama.py")
STEPS = 3
ONE_LAYER = ("--layers", "1")  # has every operator, at half the cost
DRIVER = """
import runpy, sys
script, results, level, steps, *arguments = sys.argv[1:]
sys.argv = [script, *arguments]
import torch_dipu, op_tools
with op_tools.OpCapture(level=level, store="blobs", steps=range(int(steps)), results=results):
    runpy.run_path(script, run_name="__main__")
"""


@pytest.fixture(scope="session")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all test processes: what one has captured the others need not capture again."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own) / "llama_captures"
    folder.mkdir(exist_ok=True)
    return folder


def captured(folder: Path, level: str, *arguments: str, steps: int = STEPS) -> Path:
    """The results of a run of the llama, captured once: of three steps, all or the first few."""
    results = folder / "_".join([level, str(steps), *(word.lstrip("-") for word in arguments)])
    with (folder / f"{results.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = results / "done"
        if not done.exists():
            run = run_python("-c", DRIVER, LLAMA, results, level, str(steps), *arguments, preload=TOOLS)
            assert run.returncode == 0, run.stderr[-2000:]
            assert "(complete)" in run.stdout and f"step {STEPS - 1} loss" in run.stdout
            done.touch()
    return results


@contextlib.contextmanager
def captured_wrong(folder: Path, level: str, name: str) -> Iterator[Path]:
    """The first step of a run with a wrong kernel; thousands of files, which nobody needs afterwards."""
    results = captured(folder, level, *ONE_LAYER, "--numerics", "reordered", "--wrong", name, steps=1)
    yield results
    shutil.rmtree(results)


def compared(a: Path, b: Path, *, only_first: bool = False) -> Report:
    calls = [open_either(path)[1] for path in (a, b)]
    return compare_captures((a, b), *calls, only_first=only_first)


@pytest.mark.parametrize("level", ["aten", "api"])
def test_other_rounding_is_not_blamed(captures: Path, level: str) -> None:
    report = compared(captured(captures, level), captured(captures, level, "--numerics", "reordered"))
    counts = report.counts()
    assert report.exit_code == 0 and report.first is None and counts["wrong"] == 0
    assert counts["aligned"] == len(report.entries) > 1300
    assert counts["same"] > 1000 and counts["pass"] > 100 and counts["not judged"] < 800
    assert report.parted is not None and report.parted.call.name in ("aten.mean.dim", "torch.Tensor.mean")
    assert headline(report).startswith("No call is wrong. The values part at")
    assert "by rounding only" in headline(report)


@pytest.mark.parametrize("name", WRONG)
def test_the_wrong_kernel_is_the_first_reported_call(captures: Path, name: str) -> None:
    plain = captured(captures, "aten", *ONE_LAYER, steps=1)
    with captured_wrong(captures, "aten", name) as wrong:
        report = compared(plain, wrong, only_first=True)
        folder = Path(next_step(report).removeprefix("next: op-tools reproduce "))
        assert folder.is_relative_to(wrong) and (folder / "input.pth").is_file()
    first = report.first
    assert report.exit_code == 1 and first is not None
    assert (first.call.name, first.side, first.call.step) == (aten_name(name), "B", 0), headline(report)
    assert headline(report).startswith(f"B is wrong: {aten_name(name)} (") and "small_llama.py:" in headline(
        report
    )
    assert first.figures["error_over_bound"] > 100 or "bit-exact" in first.reason


@pytest.mark.parametrize(
    ("name", "function", "phase"),
    [
        ("mm", "torch.nn.functional.linear", "forward"),
        ("silu_backward", "torch.nn.functional.silu", "backward"),
        ("embedding_dense_backward", "torch.nn.functional.embedding", "backward"),
        ("addcdiv_", "torch.Tensor.addcdiv_", "forward"),
    ],
)
def test_at_api_level_the_function_around_the_kernel_is_named(
    captures: Path, name: str, function: str, phase: str
) -> None:
    plain = captured(captures, "api", *ONE_LAYER, steps=1)
    with captured_wrong(captures, "api", name) as wrong:
        first = compared(plain, wrong, only_first=True).first
    assert first is not None
    assert (first.call.name, first.call.phase, first.side) == (function, phase, "B")


def test_an_extra_operator_shifts_nothing(captures: Path) -> None:
    report = compared(captured(captures, "aten"), captured(captures, "aten", "--variant", "extra"))
    assert report.first is None and report.only_in("A") == [] and report.exit_code == 1
    alone = [entry for entry in report.only_in("B") if entry.call.step == 0]
    assert [entry.call.name for entry in alone] == [
        "aten.clamp.default", "aten.ge.Scalar", "aten.le.Scalar", "aten.logical_and_.default", "aten.where.self",
    ]  # fmt: skip
    # The clamp changes nothing: every other call finds its partner at once, and they are equal bit for bit.
    assert {entry.same_outputs for entry in report.entries if entry.pairing == "aligned"} == {True, None}
    assert "15 only in B" in headline(report) and "are equal" in headline(report)


def test_a_missing_module_shifts_nothing(captures: Path) -> None:
    report = compared(captured(captures, "aten"), captured(captures, "aten", "--variant", "missing"))
    assert report.first is None and report.exit_code == 1
    # Where a gradient came from two sides autograd adds in place only if nobody else has the first part.
    added = report.only_in("B")
    assert [(entry.call.name, entry.call.phase) for entry in added] == [("aten.add.Tensor", "backward")] * 3
    assert "only in A" in headline(report) and "after calls that one run has alone" in headline(report)
    alone = [entry for entry in report.only_in("A") if entry.call.step == 1]
    assert {entry.call.module for entry in alone if entry.call.phase == "forward" and entry.call.module} == {
        "Llama.norm"
    }
    # In the optimizer too, where all parameters make the same calls, none is paired with another parameter's.
    pairs = [(entry.a, entry.b) for entry in report.entries if entry.pairing == "aligned"]
    assert all(shapes_of(a) == shapes_of(b) != "" for a, b in pairs if a is not None and b is not None)
    assert len(pairs) + len(report.only_in("A")) + len(added) == len(report.entries)
