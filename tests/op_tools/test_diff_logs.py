"""Two runs compared by their logs alone, and the statistics that OpObserve notes for that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_trainings import TRAININGS

import op_tools
from op_tools.cli import app, run
from op_tools.diff.compare import open_either
from op_tools.diff.printing import headline, next_step
from op_tools.diff.report import Report
from op_tools.diff.suspects import compare_logs
from op_tools.runs import open_run
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
