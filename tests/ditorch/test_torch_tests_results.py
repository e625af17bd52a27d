"""Result files must survive a kill, and say the same after reading as before writing."""

from __future__ import annotations

from pathlib import Path

import pytest

from _ditorch.torch_tests import State, results

ROW = results.Row(
    "cpu", "2.13", "test_a.py", "T.test_x", "sin", "float32", State.FAILED, 0.5, 3, 1, 2, 'a, "b"'
)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    detail = 'Traceback\n  File "x\\n.py"\nError: \\ and \\\\n, "quoted"\n'
    row = results.Row(**{**vars(ROW), "detail": detail, "reason": "because"})
    for name in ("r.csv", "r.csv.gz"):
        results.write(tmp_path / name, [row, ROW])
        assert results.read(tmp_path / name) == [row, ROW]
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 3


def test_a_torn_line_is_dropped_and_the_journal_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    with results.Journal(path) as journal:
        journal.add(ROW)
    with path.open("a") as file:
        file.write("cpu,2.13,test_a.py,T.te")
    assert results.read(path) == [ROW]
    with results.Journal(path) as journal:
        journal.add(ROW)
    assert results.read(path) == [ROW, ROW]


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.csv"
    path.write_text(text)
    with pytest.raises(results.BadResults, match="is no result file"):
        results.read(path)


def test_a_wrong_result_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    results.write(path, [ROW])
    path.write_text(path.read_text().replace(",failed,", ",great,"))
    with pytest.raises(results.BadResults, match="line 2: 'great' is not a valid State"):
        results.read(path)


def test_the_default_name_is_the_one_users_know() -> None:
    assert results.default_name("dipu") == "dipu_summary_of_pytorch_test_case_testing.csv"
