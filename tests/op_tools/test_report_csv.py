"""Reports of CSV files alone, as published tools wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import report_runs as runs

from op_tools import cli
from op_tools.report import collect as collecting
from op_tools.runs import BadInput, open_run
from op_tools.storage.csv_reader import header_in_name
from op_tools.storage.views import CsvView

pytestmark = pytest.mark.unit

PUBLISHED = "forward_id,name,allclose,cosine_similarity,max_abs_diff,max_relative_diff,atol,rtol,error_info\n"


def run_cli(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", *words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_csv_files_tell_what_their_logs_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "r" / "op_autocompare_result"
    columns = [*runs.compared(1), "rank"]
    for rank in range(3):
        rows = [runs.compared(n, verdict="fail" if rank == 2 and n > 7 else "same") for n in range(10)]
        runs.write(folder, "op_autocompare_info", rows, rank=rank, world_size=3)
        found = [{**row, "rank": rank} for row in rows]
        write_table(
            tmp_path / "csv" / f"op_autocompare_info_rank{rank}_pid9_2026-01-01-00-00-00.csv", columns, found
        )
    monkeypatch.setattr(collecting, "FEW_RANKS", 1)
    monkeypatch.setattr(collecting, "LITTLE", 0)
    by_log = collecting.collect(open_run(tmp_path / "r"), workers=0).summary()
    by_csv = collecting.collect(open_run(tmp_path / "csv", csv=True), workers=0).summary()
    assert by_csv["operators"] == by_log["operators"] and by_csv["operators"][0]["failed_on"] == "2"
    for name in ("counts", "wrong", "compared", "ranks", "steps", "state"):
        assert by_csv[name] == by_log[name]
    for name in ("operator", "step", "rank", "reason", "call_site", "error_over_bound"):
        assert by_csv["first"][name] == by_log["first"][name]
    with pytest.raises(BadInput, match=r"no \.oplog file"):
        open_run(tmp_path / "csv")


def write_table(path: Path, columns: list[str], rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    CsvView(path, columns).append(rows)


def test_tables_of_published_tools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No verdict, rank or step; the header at every flush; quoted cells; a last line that a kill cut."""
    (tmp_path / "csv").mkdir()
    rows = [
        '1,torch.add output,True,1.0,0.0,0.0,1e-3,1e-3,', '2,torch.mm output,False,0.5,3.5,2.0,1e-3,1e-3,"a, ""b""\nc"',
        '3,torch.add output,True,1.0,nan,0.0,1e-3,1e-3,',
    ]  # fmt: skip
    text = PUBLISHED + rows[0] + "\n" + PUBLISHED + rows[1] + "\n" + "4,too short\n" + rows[2] + "\n"
    path = tmp_path / "csv" / "op_autocompare_info_pid7_2026-01-01-00-00-00.csv"
    path.write_text(text + "5,torch.mm output,False,0.5,3.5,2.0,1e-3,1e-3,cut of")
    summary = collecting.collect(open_run(tmp_path / "csv", csv=True)).summary()
    assert dict(summary["counts"]) == {"fail": 1, "pass": 2}
    assert (summary["first"]["operator"], summary["first"]["error_info"]) == ("torch.mm", 'a, "b"\nc')
    (log,) = summary["environment"]["logs"]
    assert (log["rows"], log["pid"], 0 < log["damaged"] < log["dropped"] < 100) == (3, 7, True)
    code, out, _ = run_cli(capsys, str(tmp_path / "csv"))
    assert (code, out.splitlines()[0]) == (
        0,
        "Something is wrong: 1 of 3 compared values is wrong, in 1 operator.",
    )
    path.write_text("what is this\n")
    code, _, err = run_cli(capsys, str(tmp_path / "csv"))
    assert (code, "is not a CSV file of op_tools" in err) == (2, True)


def test_a_table_beside_a_log_is_a_view_of_it(tmp_path: Path) -> None:
    runs.write(tmp_path / "r", "op_autocompare_info", [runs.compared(1)])
    (tmp_path / "r" / "op_autocompare_info_pid7_2026-01-01-00-00-00.csv").write_text(PUBLISHED)
    run = open_run(tmp_path / "r", csv=True)
    assert [path.suffix for path in run.logs["autocompare"]] == [".oplog"]


@pytest.mark.parametrize(
    ("name", "rank", "pid"),
    [
        ("op_autocompare_info_rank12_some_host_pid34_2026-01-01-00-00-00.oplog", 12, 34),
        ("op_elasped_info_rank3_pid4_2026-01-01-00-00-00.csv", 3, 4),
        ("op_elasped_info_pid4_2026-01-01-00-00-00-2.csv", 0, 4),
    ],
)
def test_what_a_name_says(name: str, rank: int, pid: int) -> None:
    header = header_in_name(name)
    assert (header["rank"], header["pid"], header["started"][:4]) == (rank, pid, "2026")
    assert header_in_name("notes.csv") == {}
