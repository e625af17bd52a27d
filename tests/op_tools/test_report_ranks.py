"""The report of many ranks: summaries that add up in any order, what lacks, what is odd, and what is kept beside the logs."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import report_runs as runs
from hypothesis import given, settings
from hypothesis import strategies as st

from op_tools import cli
from op_tools.report import collect as collecting
from op_tools.report import merge, write_report
from op_tools.report.ranks import odd_ranks, ranges, ranks_of, sentence_of
from op_tools.report.scan import LogFile, scan
from op_tools.report.summary import OperatorStats, RankStats, RunSummary, bucket_of, middle_of
from op_tools.runs import BadInput, open_run
from op_tools.storage.log import Log

pytestmark = pytest.mark.unit

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RANKS, ROWS = 20, 30_000


@pytest.fixture(scope="module")
def rank_logs() -> ModuleType:
    """The benchmark's own writer of logs: the same faults, a thousandth of the rows."""
    sys.path[:0] = [str(BENCHMARKS)]
    try:
        spec = importlib.util.spec_from_file_location("rank_logs", BENCHMARKS / "rank_logs.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def written(rank_logs: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks") / "run"
    rank_logs.write_ranks(folder, RANKS, ROWS)
    return folder


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports of more than one rank are those of many."""
    monkeypatch.setattr(collecting, "FEW_RANKS", 1)
    monkeypatch.setattr(collecting, "LITTLE", 0)


def run_cli(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", *words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


# -- adding up -------------------------------------------------------------------------------------------------

NUMBERS = st.one_of(st.none(), st.floats(allow_nan=False), st.integers(-3, 10**18))
LOGS = {
    "autocompare": st.fixed_dictionaries(
        {
            "name": st.sampled_from(["torch.add output", "torch.mm output[0]", "torch.mm output[1]", ""]),
            "verdict": st.sampled_from(["same", "pass", "fail", "suspect", "lower_precision", "skipped", ""]),
            "step": st.one_of(st.none(), st.integers(0, 3)), "error_over_bound": NUMBERS, "max_abs_diff": NUMBERS,
        }
    ),
    "time_measure": st.fixed_dictionaries(
        {
            "name": st.sampled_from(["torch.add", "torch.mm"]), "call_site": st.sampled_from(["a.py:1 f: x", "b.py:2 g: y"]),
            "step": st.integers(0, 3), "forward_elasped": NUMBERS, "backward_elasped": NUMBERS,
        }
    ),
    "overflow_check": st.fixed_dictionaries(
        {"name": st.just("torch.exp"), "status": st.sampled_from(["born", ""]), "kind": st.just("Inf"), "step": st.integers(0, 3)}
    ),
    "memory": st.fixed_dictionaries({"time_s": NUMBERS, "host_rss_bytes": NUMBERS}),
}  # fmt: skip
FILES = {
    "autocompare": "op_autocompare_info", "time_measure": "op_elasped_info", "overflow_check": "op_overflow_check_info",
    "memory": "process_memory_info",
}  # fmt: skip
RANK = st.fixed_dictionaries({tool: st.lists(row, max_size=5) for tool, row in LOGS.items()})


def parts_in(folder: Path, ranks: list[dict[str, list[dict[str, Any]]]]) -> list[list[LogFile]]:
    parts = []
    for rank, logs in enumerate(ranks):
        parts.append([])
        for tool, rows in logs.items():
            with Log(
                folder, FILES[tool], rank=rank, world_size=len(ranks), about={"torch": str(rank % 2)}
            ) as log:
                log.extend([{"rank": rank, **row} for row in rows])
                parts[-1].append(LogFile(tool, str(log.path), None))
    return parts


def added(summaries: list[RunSummary]) -> RunSummary:
    whole = RunSummary()
    for one in summaries:
        whole.merge(merge._unpacked(merge._packed(one)))
    return whole


@settings(max_examples=25, deadline=None)
@given(ranks=st.lists(RANK, min_size=2, max_size=5), data=st.data())
def test_any_grouping_and_order_of_ranks_gives_the_same_summary(ranks: Any, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        summaries = [scan(logs) for logs in parts_in(Path(folder), ranks)]
    whole = added(summaries)
    order = data.draw(st.permutations(range(len(summaries))))
    groups = data.draw(st.lists(st.integers(0, 2), min_size=len(order), max_size=len(order)))
    parts = [
        added([summaries[index] for index, group in zip(order, groups, strict=True) if group == wanted])
        for wanted in range(3)
    ]
    assert added(parts) == whole
    assert added(parts[::-1]) == whole
    judged = sum(row["verdict"] == "fail" for logs in ranks for row in logs["autocompare"])
    assert sum(stats.wrong for stats in whole.operators().values()) == judged
    calls = sum(len(logs["time_measure"]) for logs in ranks)
    assert sum(stats.calls for stats in whole.operators().values()) == calls


def test_a_cell_adds_up() -> None:
    a = OperatorStats(5, 1, 2, 0, 0, 7, 3.0, None, 4, 100, 10, {3: 2, 4: 2})
    a.merge(OperatorStats(6, 0, 1, 1, 2, None, 2.0, 0.5, 1, 5, 5, {4: 1}))
    assert a == OperatorStats(11, 1, 3, 1, 2, 7, 3.0, 0.5, 5, 105, 15, {3: 2, 4: 3})


@pytest.mark.parametrize("nanoseconds", [1, 17, 1000, 12_345_678, 10**15])
def test_classes_of_durations_are_narrow(nanoseconds: int) -> None:
    assert middle_of({bucket_of(nanoseconds): 3}) == pytest.approx(nanoseconds, rel=0.05)
    assert middle_of({bucket_of(nanoseconds): 3, bucket_of(9 * nanoseconds): 2}) < 2 * nanoseconds
    assert middle_of({}) == middle_of({bucket_of(0): 1}) == 0


# -- what is said ----------------------------------------------------------------------------------------------


def test_the_page_names_what_is_wrong_and_what_lacks(
    written: Path, rank_logs: ModuleType, many: None, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run_cli(capsys, str(written), "--json", "--workers", "0")
    printed = json.loads(out)
    assert (code, rank_logs.missing_from(printed, RANKS)) == (0, [])
    assert printed["left_out"] > 10_000 and 0 < printed["rows"] < 2000
    code, out, _ = run_cli(capsys, str(written), "--workers", "0")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("Something is wrong: ")
    assert any(
        line.startswith("torch.nn.functional.matmul: ") and line.endswith("ranks: 16") for line in lines
    )
    for words in (
        "no log: rank 19", "no rows: rank 12", "logs that cannot be read: rank 4",
        "damaged logs, read but for the damage: rank 18", "logs cut at the end, as by a kill: rank 14",
        "odd, rank 14: its rows end at step 49, those of the other ranks at step 99",
    ):  # fmt: skip
        assert words in lines


def test_counts_are_those_of_reading_every_row(
    written: Path, many: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_many = collecting.collect(open_run(written), workers=0).summary()
    monkeypatch.setattr(collecting, "FEW_RANKS", RANKS)
    of_few = collecting.collect(open_run(written)).summary()
    assert of_few["left_out"] == 0 and of_few["rows"] == of_many["rows"] + of_many["left_out"]
    for name in ("rows", "left_out", "made", "selected"):
        del of_few[name], of_many[name]
    for summary in (of_few, of_many):
        for line in (
            summary["first"],
            summary["first_overflow"],
            *summary["findings"]["overflow_check"]["lines"],
        ):
            del line["row"]
    assert of_few == of_many


def test_a_row_of_the_first_screen_leads_to_its_row(written: Path, many: None) -> None:
    collected = collecting.collect(open_run(written), workers=0)
    first = collected.summary()["first"]
    block = collected.table.block("autocompare")
    block.as_plain()
    texts = list(collected.table._texts.codes)
    assert texts[block.codes["operator"][first["row"]]] == first["operator"]
    assert (block.numbers["step"][first["row"]], block.numbers["rank"][first["row"]]) == (
        first["step"],
        first["rank"],
    )
    ranks = {
        rank
        for rank, code in zip(block.numbers["rank"], block.codes["verdict"], strict=True)
        if texts[code] == "fail"
    }
    assert ranks == {8, 16}, "rows of every rank that fails"


def test_few_ranks_have_all_rows_and_many_small_ones_too(tmp_path: Path) -> None:
    for rank in range(12):
        runs.write(
            tmp_path / "r",
            "op_autocompare_info",
            [runs.compared(n) for n in range(5)],
            rank=rank,
            world_size=12,
        )
    collected = collecting.collect(open_run(tmp_path / "r"))
    assert (len(collected.table), collected.summary()["left_out"]) == (60, 0)


# -- odd ranks ---------------------------------------------------------------------------------------------------


def summary_with(**columns: list[Any]) -> RunSummary:
    """Ranks with one operator whose counts are given rank by rank."""
    count = len(next(iter(columns.values())))
    return RunSummary(
        ranks={
            rank: RankStats({"op": OperatorStats(**{name: values[rank] for name, values in columns.items()})})
            for rank in range(count)
        }
    )


@pytest.mark.parametrize(
    ("wrong", "odd"),
    [
        ([0] * 50, []),
        ([30] * 50, []),
        ([0] * 49 + [1], []),  # one value may be wrong anywhere
        ([0] * 49 + [30], [49]),
        ([0] * 48 + [30, 50], [48, 49]),
        ([50] * 49 + [0], [49]),  # right where the others are wrong
        ([9, 11, 10, 8, 12] * 10, []),
    ],
)
def test_a_rate_that_is_not_that_of_the_others(wrong: list[int], odd: list[int]) -> None:
    found = odd_ranks(summary_with(wrong=wrong, compared=[100] * len(wrong)))
    assert sorted(one["rank"] for one in found) == odd
    if odd == [49] and wrong[49] == 30:
        assert sentence_of(found[0]) == ("rank 49: op 30 of 100 values wrong, on the other ranks 0 of 4,900")


def test_equal_ranks_are_not_odd_by_chance() -> None:
    import random

    chance = random.Random(5)
    for _ in range(10):
        wrong = [sum(chance.random() < 0.02 for _ in range(100)) for _ in range(100)]
        durations = [{bucket_of(int(chance.gauss(1e6, 1e5))): 20} for _ in range(100)]
        summary = summary_with(wrong=wrong, compared=[100] * 100, calls=[20] * 100, durations=durations)
        assert odd_ranks(summary) == []


def test_times_memory_and_births() -> None:
    usual, slow = {bucket_of(1_000_000): 20}, {bucket_of(2_000_000): 20}
    summary = summary_with(calls=[20] * 8, durations=[usual] * 7 + [slow])
    (found,) = odd_ranks(summary)
    assert (found["kind"], found["rank"], found["value"] / found["others"]) == (
        "time",
        7,
        pytest.approx(2, rel=0.05),
    )
    names = [f"op{number}" for number in range(6)]
    for rank, stats in summary.ranks.items():
        stats.operators = {
            name: OperatorStats(calls=20, durations=slow if rank == 7 else usual) for name in names
        }
        stats.peaks = {"host_rss_bytes": 10**9 * (5 if rank == 2 else 1)}
        stats.last_step = 10 if rank == 3 else 500
    found_all = odd_ranks(summary)
    assert [(one["kind"], one["rank"], one["operator"]) for one in found_all] == [
        ("last_step", 3, ""), ("time", 7, ""), ("host_rss_bytes", 2, ""),
    ]  # fmt: skip
    assert sentence_of(found_all[2]) == "rank 2: host rss reached 5 GB, on the other ranks 1 GB"


def test_ranges() -> None:
    assert ranges([]) == ""
    assert ranges([7, 1, 2, 3, 9, 10, 2]) == "1-3, 7, 9-10"


def test_ranks_without_logs_of_a_header_that_claims_many(tmp_path: Path) -> None:
    runs.write(tmp_path / "r", "op_autocompare_info", [runs.compared(1)], rank=5, world_size=1 << 60)
    found = ranks_of(collecting.collect(open_run(tmp_path / "r")).found)
    assert found is not None and found["missing"] == f"0-4, 6-{(1 << 60) - 1}"
    assert ranks_of(RunSummary()) is None


# -- kept beside the logs ------------------------------------------------------------------------------------------


def test_a_second_report_reads_only_what_changed(
    tmp_path: Path, many: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [
        runs.write(
            tmp_path / "r",
            "op_autocompare_info",
            [runs.compared(n) for n in range(9)],
            rank=rank,
            world_size=3,
        )
        for rank in range(3)
    ]
    read: list[str] = []

    def watched(files: Any) -> RunSummary:
        read.extend(Path(log.path).name for log in files)
        return scan(files)

    monkeypatch.setattr(merge, "scan", watched)

    def counts() -> dict[str, int]:
        read.clear()
        return dict(collecting.collect(open_run(tmp_path / "r"), workers=0).summary()["counts"])

    first = counts()
    assert (sum(first.values()), sorted(read)) == (27, sorted(path.name for path in logs))
    assert (counts(), read) == (first, [])
    other = runs.write(
        tmp_path / "other", "op_autocompare_info", [runs.compared(n) for n in range(4)], rank=1, world_size=3
    )
    logs[1].write_bytes(other.read_bytes())
    assert (sum(counts().values()), read) == (22, [logs[1].name])
    kept = sorted((tmp_path / "r" / ".summaries").iterdir())
    assert len(kept) == 3
    kept[0].write_bytes(b"damaged")
    kept[2].write_bytes(kept[1].read_bytes())  # of other logs
    assert (sum(counts().values()), len(read)) == (22, 2)
    monkeypatch.setattr(merge, "_format", lambda: 7)  # another version of this program
    assert (sum(counts().values()), len(read)) == (22, 3)


def test_a_folder_that_nothing_can_be_written_to(tmp_path: Path, many: None) -> None:
    for rank in range(2):
        runs.write(tmp_path / "r", "op_autocompare_info", [runs.compared(1)], rank=rank, world_size=2)
    (tmp_path / "r" / ".summaries").write_text("in the way")
    written = write_report(open_run(tmp_path / "r"), tmp_path / "report.html", workers=0)
    assert written.summary["compared"] == 2


# -- bad input -----------------------------------------------------------------------------------------------------


def test_a_rank_that_no_process_can_read_costs_only_itself(
    tmp_path: Path, many: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(6):
        runs.write(tmp_path / "r", "op_autocompare_info", [runs.compared(1)], rank=rank, world_size=6)

    def fails_for_rank_3(files: Any) -> RunSummary:
        if "_rank3_" in files[0].path:
            raise MemoryError("no room")
        return scan(files)

    monkeypatch.setattr(merge, "scan", fails_for_rank_3)
    summary = collecting.collect(open_run(tmp_path / "r"), workers=0).summary()
    assert (summary["compared"], summary["ranks"]["unreadable"]) == (5, "3")
    problems = [log["problem"] for log in summary["environment"]["logs"] if log["problem"]]
    assert problems == ["MemoryError: no room"]


def test_a_damaged_log_among_others_is_said_and_alone_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.write(tmp_path / "r", "op_autocompare_info", [runs.compared(1)], rank=0, world_size=2)
    bad = runs.write(tmp_path / "r", "op_autocompare_info", [runs.compared(1)], rank=1, world_size=2)
    bad.write_text("not a log")
    code, out, _ = run_cli(capsys, str(tmp_path / "r"))
    assert code == 0
    assert "Nothing is wrong: 1 compared value." in out and "logs that cannot be read: rank 1" in out
    assert "is not a log of op_tools" in out
    os.remove(next(path for path in (tmp_path / "r").glob("*.oplog") if path != bad))
    code, _, err = run_cli(capsys, str(tmp_path / "r"))
    assert (code, "is not a log of op_tools" in err) == (2, True)


def test_a_cluster_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    folder = runs.write_run(tmp_path / "run")
    code, _, err = run_cli(capsys, str(folder), "--ray", "127.0.0.1:1")
    assert (code, "no Ray cluster could be reached" in err) == (2, True)


def test_folders_of_several_hosts_are_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(4):
        verdict = "fail" if rank == 3 else "same"
        rows = [runs.compared(n, verdict=verdict) for n in range(4)]
        runs.write(tmp_path / f"host{rank // 2}", "op_autocompare_info", rows, rank=rank, world_size=4)
    code, out, _ = run_cli(capsys, str(tmp_path / "host0"), str(tmp_path / "host1"), "--json")
    printed = json.loads(out)
    assert (code, printed["rows"], printed["ranks"]["size"], printed["ranks"]["missing"]) == (0, 16, 4, "")
    assert printed["path"] == str(tmp_path / "host0" / "report.html")
    assert [(line["fail"], line["failed_on"]) for line in printed["operators"] if line["fail"]] == [(4, "3")]
    with pytest.raises(BadInput, match="does not exist"):
        open_run(tmp_path / "host2")
