"""`ditorch torch-tests` on operator databases with planted faults: exit codes, files, crashes, hangs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("expecttest", reason="torch's operator database needs it")

from _ditorch.torch_tests import State, results
from _ditorch.torch_tests.command import program
from _ditorch.torch_tests.outcomes import StartError
from dicore.workers import WorkerPool

HERE = str(Path(__file__).parent)
KNOWN = """
[[opinfo.known]]
checks = ["forward"]
op = "planted_raising"
kind = "refusal"
match = "refused"
reason = "planted"
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", HERE)


def run(database: str, tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, JSON and console text."""
    file = tmp_path / "r.json"
    words = [
        "--device",
        "cpu",
        "--jobs",
        "1",
        "--json",
        str(file),
        "--op-db",
        f"planted_operators:{database}",
    ]
    result = CliRunner().invoke(program, [*words, "--checks", "forward", *arguments])
    return result.exit_code, json.loads(file.read_text()) if file.exists() else {}, result.output


def test_exit_code_json_and_summary(tmp_path: Path) -> None:
    code, report, text = run("ONLY_RAISING", tmp_path)
    assert code == 1
    assert report["counts"] == {"forward": {"error": 1}}
    (row,) = report["pairs"]
    assert (row["op"], row["dtype"], row["samples"], row["failing"]) == ("planted_raising", "float32", 2, 2)
    assert "RuntimeError: refused" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100


def test_a_crash_costs_one_pair_and_every_file_is_written(tmp_path: Path) -> None:
    csv, html = tmp_path / "r.csv", tmp_path / "r.html"
    code, report, _ = run("CRASHING", tmp_path, "--csv", str(csv), "--html", str(html))
    assert (code, report["counts"]) == (1, {"forward": {"passed": 2, "failed": 1, "crash": 1}})
    found = {row.operator: row for row in results.read(csv)}
    assert found["planted_crash"].result is State.CRASH
    assert found["planted_crash"].message == "crashed (signal 11, SIGSEGV)"
    assert "in crash" in found["planted_crash"].detail
    assert "max abs 0.001" in found["planted_values"].message
    assert found["planted_right"].key == ("opinfo/forward", "planted_right[float32]")
    page = html.read_text()
    assert "planted_values" in page and "<b>2</b> passed" in page and "http://" not in page


def test_a_hang_is_ended(tmp_path: Path) -> None:
    code, report, _ = run("HANGING", tmp_path, "--timeout", "2")
    assert (code, report["counts"]) == (1, {"forward": {"timeout": 1, "passed": 1}})
    assert report["pairs"][1]["message"] == "timed out after 2 s"


def test_a_listed_failure_does_not_fail_the_run(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text(KNOWN)
    code, report, text = run("ONLY_RAISING", tmp_path, "--config", str(path))
    assert (code, report["counts"]) == (0, {"forward": {"refusal": 1}})
    assert "planted" in text


def test_a_skipped_pair_is_not_run_and_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('[[opinfo.skip]]\nop = "planted_raising"\nreason = "it hangs the chip"\n')
    code, report, text = run("ONLY_RAISING", tmp_path, "--config", str(path))
    assert (code, report["counts"]) == (0, {"forward": {"skipped": 1}})
    assert "it hangs the chip" in " ".join(text.split())


def test_a_tolerance_of_the_device_file_is_used(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    rule = '[[opinfo.tolerance]]\nop = "planted_values"\nrtol = 0\natol = 0.01\nreason = "a coarse chip"\n'
    path.write_text(rule)
    assert run("CRASHING", tmp_path, "--ops", "planted_values")[0] == 1
    assert run("CRASHING", tmp_path, "--ops", "planted_values", "--config", str(path))[0] == 0


def test_what_was_found_before_the_workers_ran_out_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_run = WorkerPool.run

    def short_run(pool: WorkerPool) -> Any:
        for number, event in enumerate(whole_run(pool)):
            if number == 3:  # ready, plan, one pair
                raise StartError("the library is gone")
            yield event

    monkeypatch.setattr(WorkerPool, "run", short_run)
    code, report, text = run("CRASHING", tmp_path)
    assert (code, report["counts"]) == (3, {"forward": {"passed": 1}})
    assert report["not_run"][0] == "forward:planted_after:float32"
    assert "the library is gone" in text
    assert "3 pairs were not run" in text


def test_a_worker_that_cannot_start_is_reported_at_once(tmp_path: Path) -> None:
    code, _, text = run("NO_SUCH_LIST", tmp_path)
    assert code == 3
    assert "NO_SUCH_LIST" in text


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--ops", "no_such_operator"], 5, ""),
        (["--dtypes", "f33"], 2, "no dtype is called 'f33'"),
        (["--ops", "("], 2, "is no pattern"),
        (["--checks", "backwards"], 2, "the checks are forward, gradient"),
        (["--resume"], 2, "--resume can be used only with --source"),
        (["--config", "/no/such/file.toml"], 2, "cannot be read"),
        (["--source", "/no/such/folder", "--ops", "sin"], 2, "can be used only without --source"),
    ],
)
def test_nothing_selected_and_bad_usage(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    found, _, text = run("ONLY_RIGHT", tmp_path, *arguments)
    assert found == code
    assert said in " ".join(text.split())


def test_a_device_that_does_not_exist_is_said_clearly() -> None:
    result = CliRunner().invoke(program, ["--device", "abacus"])
    assert result.exit_code == 2
    assert "torch knows no device 'abacus'" in result.output


def test_missing_expecttest_is_said_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "expecttest", None)
    code, _, text = run("ONLY_RIGHT", tmp_path)
    assert code == 2
    assert "pip install expecttest" in text


def test_compare_page_and_tables_read_result_files(tmp_path: Path) -> None:
    def row(case: str, result: State, message: str = "") -> results.Row:
        return results.Row("cpu", torch.__version__, "test_a.py", case, "sin", "", result, message=message)

    before, after = tmp_path / "a.csv", tmp_path / "b.csv.gz"
    good, bad = State.PASSED, State.FAILED
    results.write(before, [row("one", good), row("two", bad), row("three", bad), row("four", good)])
    newer = [
        row("one", bad, "no"),
        row("two", good),
        row("three", State.CRASH),
        row("five", bad),
        row("six", good),
    ]
    results.write(after, newer)
    result = CliRunner().invoke(program, ["compare", str(before), str(after)])
    assert result.exit_code == 1
    assert "2 new failures, 1 fixed, 1 changed, 1 no longer there, 1 new, 0 the same" in result.output
    assert CliRunner().invoke(program, ["compare", str(after), str(after)]).exit_code == 0
    fixed = CliRunner().invoke(program, ["compare", str(after), str(before)])
    assert (fixed.exit_code, "1 fixed" in fixed.output) == (1, True)  # "two" fails there again
    document = tmp_path / "t.md"
    made = CliRunner().invoke(
        program, ["tables", str(before), str(after), "-o", str(document), "--note", "Hm."]
    )
    assert made.exit_code == 0
    assert "Hm." in document.read_text() and "From `b.csv.gz`." in document.read_text()
    assert "| `test_a.py` | 4 | 2 | 2 | 50.00 % | 0 |" in document.read_text()
    assert "| `test_a.py` | `sin` | failed | 1: one | no |" in document.read_text()
    page = tmp_path / "p.html"
    assert CliRunner().invoke(program, ["page", str(after), "-o", str(page)]).exit_code == 0
    assert "<b>1</b> crash" in page.read_text()
    wrong = CliRunner().invoke(program, ["compare", str(before), str(page)])
    assert (wrong.exit_code, "is no result file" in wrong.output) == (2, True)
