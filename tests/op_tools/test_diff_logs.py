"""Two runs compared by their logs alone, and the statistics that OpObserve notes for that."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_trainings import TRAININGS

import op_tools
from op_tools.cli import app, run
from op_tools.diff import report as diff_report
from op_tools.diff.compare import open_either
from op_tools.diff.printing import headline, next_step, text_of
from op_tools.diff.report import Report
from op_tools.diff.suspects import compare_logs
from op_tools.runs import BadInput, open_run
from op_tools.storage import Log

pytestmark = pytest.mark.unit


def program(scale: float = 1.0, rows: int = 8, extra: bool = False) -> None:
    torch.manual_seed(0)
    x = torch.randn(rows, 16)
    for _ in range(3):
        x = F.silu(F.linear(x, torch.eye(16)))
    torch.empty_like(x).fill_(1.0)
    if extra:
        x = x.clamp(-100, 100)
    y = x.mul(scale)
    y.sum()
    y.softmax(-1)


def observed(folder: Path, statistics: bool = True, **changes: Any) -> Path:
    with op_tools.OpObserve(results=str(folder), device="cpu", statistics=statistics):
        program(**changes)
    return folder


def compared(a: Path, b: Path) -> Report:
    return compare_logs((a, b), (open_either(a)[0], open_either(b)[0]), (0, 0))


def test_statistics_are_those_of_the_outputs(tmp_path: Path) -> None:
    bad = torch.tensor([3.0, float("nan"), -4.0, float("inf"), 0.0])
    with op_tools.OpObserve(results=str(tmp_path), device="cpu", statistics=True):
        bad.neg()
        torch.arange(6).view(2, 3).max(dim=1)
        torch.sort(torch.tensor([2.0, 1.0]).half())
        bad[:0].exp()
    rows = list(open_run(tmp_path).rows("observe"))
    stats = {row["name"]: row["stats"] for row in rows}
    assert stats["torch.Tensor.neg"] == [pytest.approx([-3.0, 4.0, 0.2, 5**0.5, 2])]
    assert stats["torch.Tensor.max"] == []  # integers only
    assert stats["torch.sort"] == [pytest.approx([1.0, 2.0, 1.5, 2.5**0.5, 0])]
    assert stats["torch.Tensor.exp"] == [None]
    assert [row["name"] for row in rows] == sorted((row["name"] for row in rows), key=list(stats).index)


def test_rows_with_statistics_are_written_when_there_are_many(tmp_path: Path) -> None:
    tool = op_tools.OpObserve(results=str(tmp_path), device="cpu", statistics=True, max_cache_size=3)
    x = torch.ones(2)
    with tool:
        for _ in range(4):
            x.neg()
        assert tool.results is not None and tool.results.count == 3
        parameter = torch.nn.Parameter(x.clone())
        parameter.grad = x
        torch.optim.SGD([parameter]).step()
        assert tool.results.count > 4  # at every step
    assert "stats" in next(tmp_path.rglob("*.csv")).read_text().splitlines()[0]


def test_without_the_option_rows_are_as_before(tmp_path: Path) -> None:
    observed(tmp_path, statistics=False)
    assert all("stats" not in row for row in open_run(tmp_path).rows("observe"))


@pytest.mark.device
def test_statistics_leave_a_training_as_it_is(tmp_path: Path) -> None:
    expected = TRAININGS["transformer"].run(3, False)
    with op_tools.OpObserve(results=str(tmp_path), statistics=True, level="aten"):
        watched = TRAININGS["transformer"].run(3, False)
    assert watched.differences(expected) == []
    assert sum(bool(row["stats"]) for row in open_run(tmp_path).rows("observe")) > 100


def test_statistics_that_part_are_suspect_and_nothing_is_called_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = observed(tmp_path / "A"), observed(tmp_path / "B", scale=1.01)
    report = compared(a, b)
    assert report.exit_code == 1 and report.counts()["wrong"] == 0 and report.counts()["suspect"] == 1
    assert report.first is not None and report.first.call.name == "torch.Tensor.mul"
    assert headline(report).startswith("Suspect (A or B): torch.Tensor.mul (forward, step ")
    assert "differ by 0.0" in headline(report) and "OP_CAPTURE_LIST=torch.Tensor.mul " in next_step(report)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        run(app, ["diff", str(a), str(b), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert ended.value.code == 1 and told["mode"] == "observe" and told["first"]["status"] == "suspect"


def test_equal_statistics_are_no_difference(tmp_path: Path) -> None:
    report = compared(observed(tmp_path / "A"), observed(tmp_path / "B"))
    assert report.exit_code == 0 and report.counts()["same"] == len(report.entries) > 8
    assert headline(report) == "No call is suspect."


def test_values_that_are_not_finite_name_their_side(tmp_path: Path) -> None:
    report = compared(observed(tmp_path / "A", scale=float("inf")), observed(tmp_path / "B"))
    assert report.first is not None and report.first.side == "A"
    assert headline(report).startswith("A is suspect: torch.Tensor.mul") and "not finite in A" in headline(
        report
    )


def test_without_statistics_only_structure_is_compared(tmp_path: Path) -> None:
    a = observed(tmp_path / "A", statistics=False)
    same = compared(a, observed(tmp_path / "B", statistics=False, scale=1.5))
    assert same.exit_code == 0 and any("only missing calls, shapes and dtypes" in note for note in same.notes)
    longer = compared(a, observed(tmp_path / "C", statistics=False, extra=True))
    assert longer.exit_code == 1 and [e.call.name for e in longer.only_in("B")] == ["torch.Tensor.clamp"]
    other = compared(a, observed(tmp_path / "D", statistics=False, rows=9))
    assert other.first is not None and other.first.call.name == "torch.nn.functional.linear"
    assert "float32[8, 16], float32[16, 16] in A, float32[9, 16], float32[16, 16] in B" in other.first.reason


def autocompared(folder: Path, *verdicts: str) -> Path:
    log = Log(folder, "op_autocompare_info")
    for name, verdict in zip(("x output", "y output", "z grad"), verdicts, strict=True):
        log.append(
            {"name": name, "verdict": verdict, "reason": f"{name} is off" if verdict == "fail" else "",
             "call_site": f"/a/b.py:1 f: {name}", "step": 0, "rank": 0, "level": "api", "error_over_bound": 7.0}
        )  # fmt: skip
    log.close()
    return folder


def test_verdicts_more_than_a_class_apart_are_suspect(tmp_path: Path) -> None:
    a = autocompared(tmp_path / "A", "same", "pass", "lower_precision")
    near = compared(a, autocompared(tmp_path / "B", "pass", "lower_precision", "lower_precision"))
    assert near.exit_code == 0 and near.counts()["lower_precision"] == 2
    far = compared(a, autocompared(tmp_path / "C", "same", "fail", "same"))
    assert [(e.call.name, e.side) for e in far.reported] == [("y output", "B"), ("z grad", "A")]
    assert far.reported[0].reason == "pass in A and fail in B: y output is off"
    assert headline(far).startswith("B is suspect: y output")
    both = compared(autocompared(tmp_path / "D", "same", "fail", "same"), tmp_path / "C")
    assert [(e.call.name, e.side) for e in both.reported] == [("y output", "both")]


# --- many ranks -------------------------------------------------------------------------------------------------


def ranks_autocompared(folder: Path, ranks: int, rows: int = 100, wrong: int = -1, strange: int = -1) -> Path:
    """Logs of several ranks; in rank `wrong` the last call of every ten fails, rank `strange` runs another program."""
    for rank in range(ranks):
        found = [
            {
                "name": f"{'other' if rank == strange else 'op'}{n % 10} output", "call_site": f"/a/b.py:1 f: op{n % 10}",
                "verdict": "fail" if rank == wrong and n % 10 == 9 else "lower_precision" if n % 50 == 7 else "same",
                "reason": "off", "step": n // 10, "level": "api", "error_over_bound": 2.0 + n, "rank": rank,
                "world_size": ranks,
            }
            for n in range(rows)
        ]  # fmt: skip
        with Log(folder, "op_autocompare_info", rank=rank, world_size=ranks) as log:
            log.extend(found)
    return folder


def test_calls_that_are_only_counted_change_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = ranks_autocompared(tmp_path / "A", 6), ranks_autocompared(tmp_path / "B", 6, wrong=4)
    whole = compared(a, b)
    assert len(whole.entries) == 600 and whole.counts()["suspect"] == 10
    monkeypatch.setattr(diff_report, "MOST_HELD", 40)
    cut = compared(a, b)
    assert len(cut.entries) <= 180
    assert (cut.counts(), cut.exit_code, cut.judged) == (whole.counts(), whole.exit_code, whole.judged)
    assert cut.operators() == whole.operators() and cut.operators()[0]["name"] == "op9 output"
    assert [entry.order for entry in cut.reported] == [entry.order for entry in whole.reported]
    assert text_of(cut) == text_of(whole)
    monkeypatch.setattr(diff_report, "MOST_HELD", 3)
    fewest = compared(a, b)
    assert fewest.counts() == whole.counts() and fewest.operators() == whole.operators()
    assert fewest.first is not None and whole.first is not None and fewest.first.order == whole.first.order


def test_memory_does_not_grow_with_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diff_report, "MOST_HELD", 50)
    peaks = []
    for ranks in (2, 8):
        a = ranks_autocompared(tmp_path / f"A{ranks}", ranks, rows=200)
        b = ranks_autocompared(tmp_path / f"B{ranks}", ranks, rows=200, wrong=1)
        compared(a, b)  # what is loaded once is not counted
        tracemalloc.start()
        assert compared(a, b).counts()["aligned"] == 200 * ranks
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_every_call_has_a_row_and_half_a_comparison_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(diff_report, "MOST_HELD", 10)
    a, b = ranks_autocompared(tmp_path / "A", 5), ranks_autocompared(tmp_path / "B", 5, wrong=2)
    with pytest.raises(SystemExit) as ended:
        run(app, ["diff", str(a), str(b), "--out", str(tmp_path / "out")])
    assert ended.value.code == 1
    rows = list(open_run(tmp_path / "out").rows("diff"))
    assert len(rows) == 500 and sum(row["status"] == "suspect" for row in rows) == 10
    strange = ranks_autocompared(tmp_path / "C", 5, strange=3)
    with pytest.raises(SystemExit) as ended:
        run(app, ["diff", str(a), str(strange), "--out", str(tmp_path / "half")])
    assert ended.value.code == 5 and "two different scripts" in capsys.readouterr().err
    assert [path for path in (tmp_path / "half").rglob("*") if path.is_file()] == []


def test_a_rank_without_rows_is_said(tmp_path: Path) -> None:
    a, b = ranks_autocompared(tmp_path / "A", 3), ranks_autocompared(tmp_path / "B", 2)
    with Log(b, "op_autocompare_info", rank=2, world_size=3) as log:
        log.flush()
    report = compared(a, b)
    assert report.counts()["aligned"] == 200
    assert "only A has rows of rank 2: not compared." in report.notes


def test_a_log_that_was_begun_before_there_were_ranks(tmp_path: Path) -> None:
    for side in "AB":
        for rank in range(2):
            with Log(tmp_path / side, "op_autocompare_info") as log:  # says rank 0 of 1
                log.append({"name": f"op{rank}", "verdict": "same", "rank": rank, "world_size": 2, "step": 0})
    report = compared(tmp_path / "A", tmp_path / "B")
    assert [(entry.rank, entry.call.name) for entry in report.entries] == [(0, "op0"), (1, "op1")]


def test_a_log_that_cannot_be_read_costs_its_rank(tmp_path: Path) -> None:
    a, b = ranks_autocompared(tmp_path / "A", 3), ranks_autocompared(tmp_path / "B", 3)
    next(b.glob("*_rank1_*.oplog")).write_text("no log at all")
    report = compared(a, b)
    assert (report.counts()["aligned"], report.lost, report.exit_code) == (200, 1, 5)
    assert any(note.startswith("B: ") and "is not a log of op_tools" in note for note in report.notes)
    assert "only A has rank 1: not compared." in report.notes
    for path in b.glob("*.oplog"):
        path.write_text("no log at all")
    with pytest.raises(BadInput, match="is not a log of op_tools"):
        compared(a, b)
