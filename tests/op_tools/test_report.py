"""The report as data: what it counts, what it names first, what it writes, and what it says of bad input."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
import report_runs as runs
import torch

import op_tools
from op_tools import cli
from op_tools.report import collect as collecting
from op_tools.report import columnar, first_divergence, headline, html_of, write_report
from op_tools.report.columnar import LONGEST_TEXT, RowTable
from op_tools.report.lines import step_lines
from op_tools.report.summary import StepStats
from op_tools.runs import BadInput, open_run
from op_tools.storage.log import Log

pytestmark = pytest.mark.unit


def summary_of(folder: Path) -> dict[str, Any]:
    return collecting.collect(open_run(folder)).summary()


def embedded(page: str, identity: str) -> str:
    found = re.search(rf'id="{identity}">(.*?)</script>', page, re.DOTALL)
    assert found
    return found[1]


def rows_in(page: str) -> list[dict[str, Any]]:
    """The rows of a page, read as the page reads them."""
    document = json.loads(gzip.decompress(base64.b64decode(embedded(page, "rows"))))
    found = []
    for block in document["blocks"]:
        for place in range(block["count"]):
            row: dict[str, Any] = {"tool": block["tool"]}
            for name, codes in block["texts"].items():
                row[name] = document["texts"][codes[place]] if place < len(codes) else ""
            for name, values in block["numbers"].items():
                row[name] = values[place] if place < len(values) else None
            found.append(row)
    return found


def run_cli(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", *words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


# -- what is counted and named ---------------------------------------------------------------------------------


def test_counts_and_first_divergence(tmp_path: Path) -> None:
    summary = summary_of(runs.write_run(tmp_path / "run"))
    assert summary["state"] == "wrong"
    assert (summary["wrong"], summary["compared"], summary["births"], summary["lower"]) == (3, 349, 1, 2)
    assert dict(summary["counts"]) == {
        "fail": 3, "NaN": 1, "lower_precision": 2, "pass": 174, "same": 170, "skipped": 1,
    }  # fmt: skip
    first = summary["first"]
    assert (first["operator"], first["value"], first["step"]) == ("torch.nn.functional.silu", "output", 1)
    assert first["row"] == 130
    assert first["reason"] == "130 of 4096 elements are off"
    assert summary["first_overflow"]["operator"] == "aten.div.Tensor"
    assert headline(summary) == (
        "Something is wrong: 3 of 349 compared values are wrong, in 2 operators; 1 call made a NaN or Inf."
    )
    assert first_divergence(summary) == (
        "first divergence: torch.nn.functional.silu output, forward at model.py:30, step 1"
    )


def test_worst_operators_steps_and_times(tmp_path: Path) -> None:
    summary = summary_of(runs.write_run(tmp_path / "run"))
    silu, mm, add = summary["operators"]
    assert (silu["operator"], silu["fail"], silu["error_over_bound"], silu["first_step"]) == (
        "torch.nn.functional.silu", 2, 260.0, 1,
    )  # fmt: skip
    assert (mm["operator"], mm["fail"]) == ("torch.mm", 1)
    assert (add["operator"], add["fail"], add["lower_precision"]) == ("torch.add", 0, 2)
    steps = {step["step"]: step for step in summary["steps"]}
    assert steps[0]["ms"] == pytest.approx(300.0)
    assert steps[1]["ms"] == pytest.approx(19 * 3 + 143)
    assert (steps[0]["lower_precision"], steps[1]["fail"], steps[2]["fail"], steps[2]["nan"]) == (2, 2, 1, 1)
    assert summary["total_ms"] == pytest.approx(500.0)
    assert [(line["operator"], line["calls"], line["share"]) for line in summary["time_operators"]] == [
        ("torch.add", 119, pytest.approx(357 / 500)), ("torch.mm", 1, pytest.approx(143 / 500)),
    ]  # fmt: skip
    assert summary["time_sites"][0]["call_site"].endswith("torch.mm(x)")
    assert summary["environment"]["timed_with"] == ["autocompare", "overflow_check"]


def test_memory_keeps_its_peak_when_points_are_put_together(tmp_path: Path) -> None:
    memory = [
        {"time_s": 100.0 + n, "host_rss_bytes": 10**9 if n == 2502 else 1000, "pid": 1} for n in range(5000)
    ]
    runs.write(tmp_path / "r", "process_memory_info", memory)
    (line,) = summary_of(tmp_path / "r")["memory"]
    assert len(line["points"]) <= 400
    assert max(value for _, value in line["points"]) == 10**9
    assert line["points"][0][0] == 0.0


def test_many_steps_are_put_together_without_losing_events() -> None:
    steps = {step: StepStats(1_000_000) for step in range(3000)}
    for one in steps.values():
        one.merge(StepStats(3_000_000))
    steps[1234].merge(StepStats(events={"fail": 1}))
    lines = step_lines(steps)
    assert len(lines) <= 400
    assert sum(line["fail"] for line in lines) == 1
    assert {line["ms"] for line in lines} == {3.0}, "the slowest rank says how long a step took"


def test_ranks_are_merged_and_the_earliest_step_wins(tmp_path: Path) -> None:
    late = [runs.compared(5, "torch.mm", "fail", step=4)]
    early = [runs.compared(7, "torch.bmm", "fail", step=2), runs.compared(8, "torch.mm", "fail", step=3)]
    runs.write(tmp_path / "r", "op_autocompare_info", late, rank=0, world_size=2)
    runs.write(tmp_path / "r", "op_autocompare_info", early, rank=1, world_size=2)
    summary = summary_of(tmp_path / "r")
    assert (summary["first"]["operator"], summary["first"]["rank"]) == ("torch.bmm", 1)
    assert first_divergence(summary).endswith("step 2, rank 1")
    assert (summary["environment"]["ranks"], summary["environment"]["world_size"]) == (2, 2)


@pytest.mark.parametrize(
    ("rows", "state", "words"),
    [
        ([runs.compared(1)], "right", "Nothing is wrong: 1 compared value."),
        (
            [runs.compared(1, verdict="lower_precision")],
            "lower",
            "1 of 1 compared values have a lower precision",
        ),
        ([runs.compared(1, verdict="skipped")], "unjudged", "Nothing was judged"),
    ],
)
def test_other_answers(tmp_path: Path, rows: list[dict[str, Any]], state: str, words: str) -> None:
    runs.write(tmp_path / "r", "op_autocompare_info", rows)
    summary = summary_of(tmp_path / "r")
    assert summary["state"] == state
    assert words in headline(summary)
    assert first_divergence(summary) == ""


def test_rows_of_a_comparison_of_two_runs(tmp_path: Path) -> None:
    """The newest comparison counts; a suspect is not called wrong; its captures are those it names."""
    runs.write(tmp_path / "r", "op_diff_info", [runs.row(1, "aten.mm.default", verdict="fail", side="B")])
    suspect = runs.row(3, "aten.silu.default", verdict="suspect", side="A", folder_a="/x/y z", folder_b="/b")
    old = next((tmp_path / "r").glob("*.oplog"))
    old.rename(old.with_name("op_diff_info_pid1_2001-01-01-00-00-00.oplog"))
    runs.write(tmp_path / "r", "op_diff_info", [runs.row(2, verdict="same", side=""), suspect])
    summary = summary_of(tmp_path / "r")
    assert summary["state"] == "suspect"
    assert (summary["wrong"], summary["suspect"]) == (0, 1)
    assert summary["first"]["operator"] == "aten.silu.default"
    assert summary["first"]["reproduce"] == "op-tools reproduce '/x/y z'"
    assert headline(summary) == "Something may be wrong: 1 call suspect, none proved wrong."


def test_which_capture_belongs_to_a_row(tmp_path: Path) -> None:
    """The capture of the same call; none where several fit; what OpAutoCompare saved of a failure."""
    captured = [
        runs.row(1, "torch.mm", folder="torch.mm/9/1/x"),
        runs.row(2, "aten.mul.Tensor", folder="aten.mul.Tensor/9/3/x"),
        runs.row(2, "aten.mul.Tensor", folder="aten.mul.Tensor/9/4/x"),
    ]
    rows = [
        runs.compared(1, "torch.mm"),
        runs.compared(2, "aten.mul.Tensor"),
        runs.compared(5, "torch.silu", "fail"),
    ]
    runs.write(tmp_path / "r", "op_capture_info", captured, pid=9)
    runs.write(tmp_path / "r", "op_autocompare_info", rows, pid=9)
    saved = "op_capture_results/torch.silu/9/autocompare/5/time/device"
    (tmp_path / "r" / saved).mkdir(parents=True)
    page = write_report(open_run(tmp_path / "r"), tmp_path / "report.html").path.read_text(encoding="utf-8")
    found = [row["capture"] for row in rows_in(page) if row["tool"] == "autocompare"]
    assert found == [str(tmp_path / "r/op_capture_results/torch.mm/9/1/x"), "", str(tmp_path / "r" / saved)]
    first = json.loads(embedded(page, "summary"))["first"]
    assert first["reproduce"] == f"op-tools reproduce {tmp_path / 'r' / saved}"


# -- the file --------------------------------------------------------------------------------------------------


def test_the_page_holds_all_rows_and_needs_nothing_else(tmp_path: Path) -> None:
    folder = runs.write_run(tmp_path / "run")
    written = write_report(open_run(folder), tmp_path / "out" / "report.html", title="A <title>")
    page = written.path.read_text(encoding="utf-8")
    assert written.size == len(page.encode())
    rows = rows_in(page)
    assert len(rows) == written.rows == 350 + 120 + 1
    assert rows[130] | {"pid": 0} == {
        "tool": "autocompare", "operator": "torch.nn.functional.silu", "value": "output", "verdict": "fail",
        "reason": "130 of 4096 elements are off", "phase": "forward", "level": "api", "module": "Model.layer1",
        "call_site": "/home/someone/model.py:30 forward: y = torch.nn.functional.silu(x)", "allclose": "False",
        "forward_id": 130, "step": 1, "rank": 0, "pid": 0, "error_over_bound": 140.0, "max_abs_diff": 0.5,
        "max_relative_diff": 0.25, "cosine_similarity": 1.0, "atol": 1e-5, "rtol": 1e-5,
    }  # fmt: skip
    assert "<title>A &lt;title&gt;</title>" in page
    assert not re.search(r"""(?:src|href)=["'](?!#)|https?://(?!www\.w3\.org/2000/svg)|@import|url\(""", page)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"], "no temporary file stays"


def test_the_policy_allows_this_script_and_no_other(tmp_path: Path) -> None:
    folder = runs.write_run(tmp_path / "run")
    page = write_report(open_run(folder), tmp_path / "report.html").path.read_text(encoding="utf-8")
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1])  # type: ignore[index]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]  # type: ignore[index]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


@pytest.mark.parametrize("kind", runs.HOSTILE)
def test_hostile_texts_stay_data(tmp_path: Path, kind: str) -> None:
    text = runs.HOSTILE[kind]
    rows = [runs.compared(1, verdict="fail", reason=text, module=text, call_site=text), runs.row(2, text)]
    runs.write(tmp_path / "r", "op_autocompare_info", rows)
    written = write_report(open_run(tmp_path / "r"), tmp_path / "report.html", title=text)
    page = written.path.read_text(encoding="utf-8")
    assert page.count("<script") == 3
    assert "<img" not in page
    found = rows_in(page)
    assert (found[0]["reason"], found[0]["module"], found[0]["call_site"]) == (text, text, text)
    assert json.loads(embedded(page, "summary"))["first"]["reason"] == text
    small = html_of(open_run(tmp_path / "r"))
    assert not re.search(r"<(script|img|!--)", small)
    assert "\u202e" not in small and "\x1b" not in small


def test_numbers_without_a_place_in_json(tmp_path: Path) -> None:
    figures = {
        "max_abs_diff": float("inf"),
        "max_relative_diff": float("nan"),
        "error_over_bound": float("inf"),
    }
    runs.write(tmp_path / "r", "op_autocompare_info", [runs.compared(1, verdict="fail", **figures)])
    page = write_report(open_run(tmp_path / "r"), tmp_path / "report.html").path.read_text(encoding="utf-8")
    (row,) = rows_in(page)
    assert (row["max_abs_diff"], row["max_relative_diff"], row["error_over_bound"]) == ("inf", "nan", "inf")
    assert json.loads(embedded(page, "summary"))["operators"][0]["error_over_bound"] == "inf"


@pytest.mark.parametrize("junk", [[1], {"a": 1}, "text", 2.5, None, True, 1 << 60, b"bytes"])
def test_rows_from_elsewhere_with_values_of_other_types(tmp_path: Path, junk: Any) -> None:
    keys = [
        *runs.compared(1),
        *runs.timed(1),
        "kind",
        "status",
        "side",
        "folder",
        "pid",
        "rank",
        "world_size",
    ]
    rows = [{**runs.compared(1, verdict="fail"), key: junk} for key in keys] + [dict.fromkeys(keys, junk)]
    for log in ("autocompare", "elasped", "overflow_check", "capture", "diff", "observe"):
        runs.write(tmp_path / "r", f"op_{log}_info", rows)
    runs.write(
        tmp_path / "r", "process_memory_info", [dict.fromkeys(["time_s", "host_rss_bytes", "rank"], junk)]
    )
    written = write_report(open_run(tmp_path / "r"), tmp_path / "report.html")
    assert written.rows == 6 * len(rows)
    assert len(rows_in(written.path.read_text(encoding="utf-8"))) == written.rows
    assert written.summary["wrong"] > 0
    assert html_of(tmp_path / "r").count("<tr>") == 21


def test_columns_share_their_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "_AT_ONCE", 300)
    table = RowTable()
    for number in range(1000):
        table.block("time_measure").append({"operator": "torch.add", "step": number, "thread": 5})
    table.block("time_measure").append({"operator": "y" * (LONGEST_TEXT + 1), "new": [1, 2]})
    document = json.loads(gzip.decompress(base64.b64decode(table.packed())))
    (block,) = document["blocks"]
    assert block["count"] == len(table) == 1001
    assert block["texts"]["operator"][:1000] == [1] * 1000
    assert block["numbers"]["step"] == [*range(1000), None]
    assert document["texts"][block["texts"]["new"][1000]] == "[1, 2]"
    assert max(map(len, document["texts"])) <= LONGEST_TEXT
    assert "thread" not in block["texts"] | block["numbers"]


def test_more_rows_than_a_page_should_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "MOST_ROWS", 100)
    collected = collecting.collect(open_run(runs.write_run(tmp_path / "run")))
    summary = collected.summary()
    kept = len(collected.table)
    assert (summary["wrong"], summary["compared"]) == (3, 349), "counted although not listed"
    assert kept == 100 + 3 + 1, "what is wrong is always listed"
    assert summary["left_out"] == 471 - kept
    assert summary["first"]["row"] == 100


def test_a_torn_log_is_reported_as_incomplete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = runs.write(tmp_path / "r", "op_autocompare_info", [runs.compared(1), runs.compared(2)])
    path.write_bytes(path.read_bytes()[:-7])
    summary = summary_of(tmp_path / "r")
    (log,) = summary["environment"]["logs"]
    assert log["rows"] == 1
    assert log["dropped"] == summary["environment"]["dropped"] > 0
    code, out, _ = run_cli(capsys, str(tmp_path / "r"))
    assert code == 0
    assert "incomplete" in out


# -- a real run ------------------------------------------------------------------------------------------------


@pytest.mark.device
def test_a_real_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(4, 4, device="dipu", requires_grad=True)
    with op_tools.OpAutoCompare() as compare, op_tools.OpTimeMeasure(), op_tools.OpCapture():
        (x * 2).sum().backward()
        running = html_of(compare)
    with op_tools.OpOverflowCheck():
        torch.zeros(2, device="dipu") / 0
    summary = summary_of(tmp_path / "op_tools_results")
    assert summary["wrong"] == 0
    assert summary["births"] == 1
    assert summary["first_overflow"]["operator"] == "aten.div.Tensor"
    assert summary["environment"]["devices"][-1].startswith("dipu")
    assert summary["environment"]["torch"] == [str(torch.__version__)]
    assert "OpAutoCompare</b>: running" in running and "torch.Tensor.mul output" in running
    capsys.readouterr()
    code, out, _ = run_cli(capsys)
    assert code == 0
    assert "test_report.py" in out
    page = (tmp_path / "op_tools_results" / "report.html").read_text(encoding="utf-8")
    captured = [row for row in rows_in(page) if row["operator"] == "torch.Tensor.mul" and row["capture"]]
    assert {row["tool"] for row in captured} == {"autocompare", "time_measure", "capture"}
    assert all(Path(row["capture"], "input.pth").is_file() for row in captured)


# -- the command -----------------------------------------------------------------------------------------------


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs.write_run(tmp_path / "run")
    code, out, err = run_cli(capsys, str(folder), "-o", "mine.html", "--title", "Mine")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("Something is wrong: 3 of 349")
    assert lines[1] == "first divergence: torch.nn.functional.silu output, forward at model.py:30, step 1"
    assert re.fullmatch(r"mine\.html: 0\.\d\d MB, 471 rows", lines[-1])
    assert "<title>Mine</title>" in Path("mine.html").read_text(encoding="utf-8")
    code, out, _ = run_cli(capsys, str(folder), "--json")
    result = json.loads(out)
    assert code == 0
    assert result["path"] == str(folder / "report.html")
    assert (result["rows"], result["state"], result["counts"]["fail"]) == (471, "wrong", 3)
    assert result["bytes"] == (folder / "report.html").stat().st_size
    assert result["first"]["operator"] == "torch.nn.functional.silu"


def test_one_log_is_a_run_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = runs.write(tmp_path / "r", "op_elasped_info", [runs.timed(1)])
    code, out, _ = run_cli(capsys, str(path))
    assert code == 0
    assert "Nothing was judged" in out
    assert (tmp_path / "r" / "report.html").is_file()


def test_a_right_run_after_a_wrong_one_in_the_same_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, verdict in (("first", "fail"), ("second", "same")):
        with Log(tmp_path / "run", "op_autocompare_info", about={"run_id": run}) as log:
            log.append(runs.compared(1, verdict=verdict))
    code, out, _ = run_cli(capsys, "run")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "Nothing is wrong: 1 compared value."
    assert lines[1] == "1 log of an older run left out, the newest run of each tool counts: run"
    code, out, _ = run_cli(capsys, "run", "--json")
    assert (json.loads(out)["older_logs"], json.loads(out)["state"]) == (1, "right")


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run_cli(capsys, "missing")
    assert (code, "missing does not exist" in err) == (2, True)
    (tmp_path / "empty").mkdir()
    code, _, err = run_cli(capsys, "empty")
    assert (code, "holds no results" in err) == (5, True)
    runs.write(tmp_path / "hollow", "op_autocompare_info", [runs.compared(1)])
    log = next((tmp_path / "hollow").glob("*.oplog"))
    log.write_bytes(log.read_bytes()[:10])
    code, _, err = run_cli(capsys, "hollow")
    assert (code, "has nothing to report" in err) == (5, True)
    (tmp_path / "foreign.json").write_text("{}")
    code, _, err = run_cli(capsys, "foreign.json")
    assert (code, "is not a log of op_tools" in err) == (2, True)
    folder = runs.write_run(tmp_path / "run")
    code, _, err = run_cli(capsys, str(folder), "-o", str(tmp_path / "empty"))
    assert (code, "is a folder" in err) == (2, True)
    code, _, err = run_cli(capsys, str(folder), "-o", str(tmp_path / "foreign.json" / "report.html"))
    assert (code, "cannot be written" in err) == (2, True)
    assert "Traceback" not in err
    for target, said in ((".", "is a folder"), ("/", "is a folder"), ("n" * 300, "File name too long")):
        code, _, err = run_cli(capsys, str(folder), "-o", target)
        assert (code, said in err, "Traceback" in err) == (2, True, False)
    code, _, err = run_cli(capsys, "n" * 300)
    assert (code, "File name too long" in err) == (2, True)


# -- notebooks -------------------------------------------------------------------------------------------------


def test_static_table(tmp_path: Path) -> None:
    text = html_of(open_run(runs.write_run(tmp_path / "run")))
    assert text.count("<tr>") == 1 + 20
    assert "20 of 471 rows" in text
    first = re.findall(r"<tbody><tr>(.*?)</tr>", text)[0]
    assert first.startswith("<td>torch.nn.functional.silu output</td><td>fail</td><td>forward</td><td>1</td>")
    assert "<script" not in text
    assert html_of(tmp_path / "run") == text
    assert "does not exist" in html_of(tmp_path / "missing")


def test_static_table_of_a_tool_without_rows() -> None:
    assert html_of(op_tools.OpTimeMeasure()) == "<p><b>OpTimeMeasure</b>: not running, no rows yet.</p>"


def test_nothing_to_report_raises(tmp_path: Path) -> None:
    (tmp_path / "op_capture_results").mkdir()
    with pytest.raises(BadInput, match="nothing to report") as found:
        write_report(open_run(tmp_path), tmp_path / "report.html")
    assert found.value.code == 5


def test_the_first_divergence_is_the_first_that_happened(tmp_path: Path) -> None:
    """Gradients go by the number of their forward call, which is smaller than that of calls before them."""
    wrong = {"verdict": "fail", "status": "wrong", "side": "B", "step": 0}
    rows = [
        runs.row(10, "torch.gelu", **wrong),
        runs.row(3, "torch.relu", **wrong | {"phase": "backward"}),
    ]
    runs.write(tmp_path / "diff", "op_diff_info", rows)
    assert summary_of(tmp_path / "diff")["first"]["operator"] == "torch.gelu"
    # Step numbers of two runs may differ; what diff says first is first.
    runs.write(tmp_path / "steps", "op_diff_info", [{**rows[0], "step": 7}, rows[1]])
    assert summary_of(tmp_path / "steps")["first"]["operator"] == "torch.gelu"
    runs.write(tmp_path / "compared", "op_autocompare_info", rows)
    assert summary_of(tmp_path / "compared")["first"]["operator"] == "torch.gelu"
    # An optimizer runs behind the gradients, and its calls are forward calls.
    rows = [{**rows[1]}, runs.row(20, "torch._foreach_add_", **wrong)]
    runs.write(tmp_path / "optimizer", "op_autocompare_info", rows)
    assert summary_of(tmp_path / "optimizer")["first"]["operator"] == "torch.relu"
