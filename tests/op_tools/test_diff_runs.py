"""Two runs compared from what lies on disk: which side is wrong, what is not judged, what the command says and returns."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import op_tools
from op_tools.cli import app, run
from op_tools.diff.compare import compare_captures, open_either
from op_tools.diff.printing import headline
from op_tools.diff.report import Report
from op_tools.runs import open_run

pytestmark = pytest.mark.unit


def program(seed: int = 0) -> None:
    """A few calls of every kind, forward and backward."""
    torch.manual_seed(seed)
    x = torch.randn(8, 16, requires_grad=True)
    y = F.silu(F.linear(x, torch.randn(4, 16)))
    room = torch.empty_like(y.detach())
    room.copy_(y.detach()).mul_(2.0).add_(1.0)
    noise = torch.rand_like(torch.zeros(4000))
    (y * room.sum() + noise.mean()).t().sum().backward()


def other_program() -> None:
    x = torch.ones(3)
    for _ in range(30):
        x = x.cos()


def recorded(folder: Path, what: Callable[[], Any] = program, **settings: Any) -> Path:
    with op_tools.OpCapture(results=str(folder), device="cpu", **settings):
        what()
    return folder


def folder_of(results: Path, name: str) -> Path:
    row = next(row for row in open_run(results).rows("capture") if row["name"] == name)
    return results / "op_capture_results" / row["folder"]


def spoil(results: Path, name: str, part: str = "output", by: float = 1.01) -> None:
    """As if a kernel had been wrong: the captured values are off by a hundredth."""
    path = folder_of(results, name) / f"{part}.pth"
    values = op_tools.load(path)["args"]
    wrong = tuple(
        v.detach() * by if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in values
    )
    torch.save({"args": wrong, "kwargs": {}}, path)


def compared(a: Path, b: Path, **options: Any) -> Report:
    return compare_captures((a, b), open_either(a)[1], open_either(b)[1], **options)


def command(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        run(app, ["diff", *map(str, words)])
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return int(ended.value.code or 0), told.out, told.err


@pytest.mark.parametrize("level", ["api", "aten"])
@pytest.mark.parametrize("store", ["files", "blobs"])
def test_equal_runs_are_equal(tmp_path: Path, level: str, store: str) -> None:
    a, b = (recorded(tmp_path / name, level=level, store=store) for name in "AB")
    report = compared(a, b)
    counts = report.counts()
    assert report.exit_code == 0 and report.first is None and report.parted is None
    assert counts["wrong"] == counts["only in A"] == counts["only in B"] == 0
    assert counts["same"] >= 8 and counts["aligned"] == len(report.entries)
    equal = sum(entry.same_outputs is True for entry in report.entries)
    assert equal == counts["aligned"] - counts["not judged"]
    assert f"All values of the {equal} calls that were compared are equal; " in headline(report)
    assert f"{counts['not judged']} were not compared" in headline(report)
    reasons = {entry.call.name: entry.reason for entry in report.entries if entry.status == "not judged"}
    assert any("uninitialised" in reason for reason in reasons.values())
    assert all("view" in reason or "uninitialised" in reason for reason in reasons.values()), reasons
    status = {entry.call.name: entry.status for entry in report.entries}
    assert level == "aten" or (status["torch.rand_like"], status["torch.Tensor.add_"]) == ("pass", "same")


@pytest.mark.parametrize("spoilt", ["A", "B", "AB"])
def test_the_side_that_is_wrong_is_named(
    tmp_path: Path, spoilt: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {name: recorded(tmp_path / name, store="blobs") for name in "AB"}
    for name in spoilt:
        spoil(runs[name], "torch.nn.functional.silu")
        spoil(runs[name], "torch.Tensor.add_")
    code, out, _ = command(capsys, runs["A"], runs["B"])
    lines = out.splitlines()
    told = "A and B are both wrong" if spoilt == "AB" else f"{spoilt} is wrong"
    assert code == 1
    assert re.match(
        rf"{told}: torch\.nn\.functional\.silu \(forward, step \d+\) at {re.escape(__file__)}:", lines[0]
    )
    assert "times the bound" in lines[0]
    assert lines[1] == f"next: op-tools reproduce {folder_of(runs[spoilt[-1]], 'torch.nn.functional.silu')}"
    assert max(map(len, lines[2:-1])) <= 100
    rows = list(open_run(runs["B"]).rows("diff"))
    wrong = [row for row in rows if row["status"] == "wrong"]
    assert [row["name"] for row in wrong] == ["torch.nn.functional.silu", "torch.Tensor.add_"]
    assert {(row["verdict"], row["side"]) for row in wrong} == {
        ("fail", "both" if spoilt == "AB" else spoilt)
    }
    assert all(row["reason"] and row["call_site"] and row["step"] >= 0 for row in wrong)
    assert len(rows) > 10 and {row["pairing"] for row in rows} == {"aligned"}


def test_gradients_at_api_level_are_judged_by_what_flowed_in(tmp_path: Path) -> None:
    a, b = (recorded(tmp_path / name) for name in "AB")
    spoil(b, "torch.nn.functional.silu", "grad_inputs")
    first = compared(a, b).first
    assert first is not None
    assert (first.call.name, first.call.phase, first.side) == ("torch.nn.functional.silu", "backward", "B")


def test_json_names_the_first_call_and_counts_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (recorded(tmp_path / name) for name in "AB")
    spoil(b, "torch.nn.functional.linear")
    spoil(b, "torch.Tensor.sum")
    code, out, _ = command(capsys, a, b, "--json", "--out", tmp_path / "rows")
    told = json.loads(out)
    assert code == told["exit_code"] == 1
    assert told["first"]["name"] == "torch.nn.functional.linear" and told["first"]["side"] == "B"
    assert told["counts"]["wrong"] == 2 and len(told["wrong"]) == 2
    assert {row["name"] for row in told["operators"]} == {"torch.nn.functional.linear", "torch.Tensor.sum"}
    assert told["headline"].startswith("B is wrong: torch.nn.functional.linear")
    assert open_run(tmp_path / "rows").has("diff") and not open_run(b).has("diff")


def test_stopping_at_the_first_judges_no_more_than_needed(tmp_path: Path) -> None:
    a, b = (recorded(tmp_path / name) for name in "AB")
    spoil(b, "torch.nn.functional.linear")
    spoil(b, "torch.Tensor.add_")
    report = compared(a, b, only_first=True)
    assert report.first is not None and report.first.call.name == "torch.nn.functional.linear"
    assert report.counts()["wrong"] == 1 and any("judged up to the first" in note for note in report.notes)


def test_worker_processes_find_the_same(tmp_path: Path) -> None:
    a, b = (recorded(tmp_path / name) for name in "AB")
    spoil(b, "torch.Tensor.add_")
    here, there = compared(a, b), compared(a, b, workers=1)
    assert there.counts() == here.counts()
    assert [entry.reason for entry in there.entries] == [entry.reason for entry in here.entries]


def test_other_data_is_not_taken_for_a_wrong_call(tmp_path: Path) -> None:
    a, b = recorded(tmp_path / "A"), recorded(tmp_path / "B", lambda: program(seed=1))
    report = compared(a, b)
    assert report.exit_code == 0 and report.counts()["wrong"] == 0
    assert "the inputs differ already at torch.nn.functional.linear" in headline(report)
    assert "Same seed, data and checkpoint?" in headline(report)


def test_other_random_numbers_are_said_to_be_that(tmp_path: Path) -> None:
    def draws(seed: int) -> None:
        x = torch.zeros(4000).sin()
        torch.manual_seed(seed)
        torch.rand_like(x).cos()

    a, b = recorded(tmp_path / "A", lambda: draws(1)), recorded(tmp_path / "B", lambda: draws(2))
    report = compared(a, b)
    assert report.exit_code == 0 and "drew other random numbers at torch.rand_like" in headline(report)
    spoil(b, "torch.rand_like", by=2.0)
    first = compared(a, b).first
    assert first is not None and (first.call.name, first.side) == ("torch.rand_like", "B")


def test_a_capture_that_is_gone_is_not_judged(tmp_path: Path) -> None:
    a, b = (recorded(tmp_path / name) for name in "AB")
    for results in (a, b):
        shutil.rmtree(folder_of(results, "torch.Tensor.mul_"))
    report = compared(a, b)
    entry = next(entry for entry in report.entries if entry.call.name == "torch.Tensor.mul_")
    assert report.exit_code == 5 and entry.status == "not judged" and "cannot be read" in entry.reason


def test_captures_without_a_log_are_ordered_by_number(tmp_path: Path) -> None:
    a, b = (recorded(tmp_path / name) for name in "AB")
    spoil(b, "torch.nn.functional.silu", "grad_inputs")
    spoil(b, "torch.Tensor.add_")
    for log in b.rglob("*.oplog"):
        log.unlink()
    bare = tmp_path / "bare"
    shutil.copytree(b / "op_capture_results", bare)  # and without our folder's name
    for other in (b, bare):
        report = compared(a, other)
        assert report.first is not None and report.first.call.name == "torch.Tensor.add_"
        assert report.counts()["wrong"] == 2 and any("no log" in note for note in report.notes)


def test_a_call_that_one_run_has_alone_is_judged_too(tmp_path: Path) -> None:
    def longer() -> None:
        program()
        torch.ones(7).exp()

    a, b = recorded(tmp_path / "A"), recorded(tmp_path / "B", longer)
    assert [entry.call.name for entry in compared(a, b).only_in("B")] == ["torch.Tensor.exp"]
    spoil(b, "torch.Tensor.exp")
    report = compared(a, b)
    assert report.first is not None and (report.first.call.name, report.first.side) == (
        "torch.Tensor.exp",
        "B",
    )


def test_a_hostile_capture_is_not_run(tmp_path: Path) -> None:
    a, b = (recorded(tmp_path / name) for name in "AB")
    header = {"operator": "torch.Tensor.repeat"}
    for results in (a, b):
        path = folder_of(results, "torch.nn.functional.silu") / "input.pth"
        torch.save({"args": (torch.ones(2), 10**6, 10**6), "kwargs": {}, "__op_tools__": header}, path)
    entry = next(e for e in compared(a, b).entries if e.call.name == "torch.nn.functional.silu")
    assert entry.status == "not judged" and "asks for" in entry.reason


# --- bad input ------------------------------------------------------------------------------------------------


def test_missing_empty_and_foreign_input_is_said_plainly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = recorded(tmp_path / "A")
    empty = tmp_path / "empty"
    empty.mkdir()
    foreign = tmp_path / "foreign.json"
    foreign.write_text("{}")
    silent = recorded(tmp_path / "silent", list="torch.no_such_function")
    code, _, told = command(capsys, a, tmp_path / "nowhere")
    assert code == 2 and "nowhere does not exist" in told
    code, _, told = command(capsys, a, empty)
    assert code == 5 and "holds no results" in told
    code, _, told = command(capsys, foreign, a)
    assert code == 2 and "foreign.json is not a log of op_tools" in told
    if silent.exists():
        code, _, told = command(capsys, a, silent)
        assert code == 5 and ("no captured call" in told or "holds no results" in told)


def test_an_unreadable_folder_is_said_plainly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (recorded(tmp_path / name) for name in "AB")
    b.chmod(0)
    try:
        if any(True for _ in b.iterdir()):
            pytest.skip("this user may read everything")
    except PermissionError:
        code, _, told = command(capsys, a, b)
        assert code == 2 and "permission denied" in told
    finally:
        b.chmod(0o755)


def test_mixed_levels_and_different_scripts_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, low = recorded(tmp_path / "A"), recorded(tmp_path / "low", level="aten")
    code, _, told = command(capsys, a, low)
    assert code == 2 and "A was recorded at level api, B at level aten" in told and "Record both" in told
    other = recorded(tmp_path / "other", other_program)
    code, _, told = command(capsys, a, other)
    assert code == 5 and "two different scripts" in told and "call 1: A torch.nn.functional.linear" in told


def test_captures_in_one_run_only_are_not_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = recorded(tmp_path / "A")
    with op_tools.OpObserve(results=str(tmp_path / "B"), device="cpu"):
        program()
    code, _, told = command(capsys, a, tmp_path / "B")
    assert (
        code == 2
        and "captured calls" in told
        and "logs of observe" in told
        and "ditorch run --tool capture" in told
    )


def test_two_runs_in_one_folder_are_told_apart(tmp_path: Path) -> None:
    """The log of another process of the same rank in the same folder: a second start of the program."""
    from op_tools.storage import Log

    a, b = (recorded(tmp_path / name) for name in "AB")
    log = Log(b / "op_capture_results", "op_capture_info")
    log.append({"name": "torch.Tensor.exp", "pid": 1, "rank": 0, "step": 0, "folder": "nowhere"})
    log.close()
    report = compared(a, b)
    assert report.exit_code == 0
    assert any("rank 0 has rows of 2 processes" in note for note in report.notes)
