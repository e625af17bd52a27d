"""What a person sees of a replay: tables of 100 columns with the verdict, the number of the folder, one form of numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captures import capture, published
from printed import COMPARED, tables

from op_tools import cli, run_op_from_data
from op_tools.captured.load import find_items, read_item
from op_tools.tables import figure, fitted_table, plain_table, time_table, verdict_table

pytestmark = pytest.mark.unit

HERE = ("--device", "cpu", "--workers", "0")
SHORT = ("name", "verdict", *COMPARED[1:-1])


def printed(capsys: pytest.CaptureFixture[str], *words: Any, program: Any = cli.main) -> str:
    with pytest.raises(SystemExit):
        program([str(word) for word in words])
    return capsys.readouterr().out


def linear(root: Path, change: Callable[[Any], Any] = lambda y: y) -> Path:
    torch.manual_seed(0)
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(16, 8, requires_grad=True)
    arguments = (x, w, torch.randn(16))
    return capture(
        root, F.linear, arguments, grads=[torch.randn(4, 16)], forward_id=268, change=change,
        call_site="/a/rather/long/path/of/a/project/train.py:287 forward: output = F.linear(total_x, weight, bias)  # and so on",
    )  # fmt: skip


def test_a_short_table_with_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OP_TOOLS_VERBOSE", raising=False)
    monkeypatch.chdir(tmp_path)
    folder = linear(tmp_path / "data")
    text = printed(capsys, "replay", folder, *HERE)
    lines = text.splitlines()
    assert lines[:2] == [str(folder), "torch.nn.functional.linear forward_id: 268    verdict: same"]
    (table,) = tables(text)
    assert table.columns == SHORT
    names = ["input[0]", "input[1]", "input[2]", "output", "captured output"]
    assert table.names == [*names, "grad[0]", "grad[1]", "captured grad[0]", "captured grad[1]"]
    assert {row["verdict"] for row in table.rows} == {"same"}
    assert {(row["max_abs_diff"], row["atol"]) for row in table.rows} == {("0", "1.00e-5")}
    assert "Inconsistent dtypes" not in text
    assert all(len(line) <= 100 for line in lines if "/" not in line)
    assert lines[-1] == "1 call: 1 same"


def test_what_is_wrong_stands_below_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = printed(capsys, "replay", linear(tmp_path / "data", lambda y: y * 1.01), *HERE)
    (table,) = tables(text)
    assert table["captured output"]["verdict"] == "fail" and table["output"]["verdict"] == "same"
    assert "forward_id: 268    verdict: fail" in text
    below = text[text.rindex("+--") :]
    assert below.splitlines()[1].startswith("captured output: fail: the captured value is wrong")
    assert text.count("captured value is wrong") == 1, "said once"


@pytest.mark.parametrize("way", ["the promised script", "--verbose", "OP_TOOLS_VERBOSE"])
def test_the_tables_of_the_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = linear(tmp_path / "data")
    if way == "the promised script":
        text = printed(capsys, folder, *HERE, program=run_op_from_data.main)
    elif way == "--verbose":
        text = printed(capsys, "replay", folder, way, *HERE)
    else:
        monkeypatch.setenv(way, "1")
        text = printed(capsys, "replay", folder, *HERE)
    columns = [table.columns for table in tables(text)]
    assert columns.count(COMPARED) == 2 and SHORT not in columns
    assert len(re.findall(r"^torch\.nn\.functional\.linear forward_id: 268 ", text, re.M)) == 2
    assert "Inconsistent dtypes" not in text


def test_the_times_of_long_names_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "torch.nn.functional." + "a_very_long_name_of_an_operator_" * 3
    rows = [{"name": name, "forward_id": 7, "forward_elasped": 1.5, "backward_elasped": 2.5, "unit": "ms"}]
    assert name in time_table(rows)
    short = time_table(rows, shorten=True)
    assert len(short.splitlines()[0]) == 100 and "torch.nn." in short and "of_an_operator_" in short
    folder = linear(tmp_path / "data")
    text = printed(
        capsys, "replay", folder, "--sync_time_measure", "--run_times", "2", *HERE, "--out", tmp_path
    )
    (table,) = tables(text)
    assert [row["forward_id"] for row in table.rows] == ["268", "268"]


def test_no_table_is_wider_than_100_columns() -> None:
    row = {
        "name": "captured output[10]",
        "verdict": "lower_precision",
        "allclose": False,
        "max_abs_diff": 1.234e-12,
    }
    row |= {"max_relative_diff": math.inf, "atol": 1.25e-5, "rtol": 1.25e-5}
    table = verdict_table([row, {**row, "name": "x" * 200}])
    assert len(table.splitlines()[0]) <= 100 and "lower_precision" in table and "1.23e-12" in table
    cells = [["a", 1, 2]]
    assert fitted_table(("name", "b", "c"), cells) == plain_table(("name", "b", "c"), cells)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (1e-5, "1.00e-5"), (1.2345e-7, "1.23e-7"), (0.003906250, "0.003906"), (0.5, "0.5"), (12.3456, "12.35"),
        (1234.5678, "1,235"), (583.0, "583"), (10_000.0, "10,000"), (1.5e12, "1.50e+12"), (-3e-9, "-3.00e-9"),
        (math.inf, "inf"), (True, "True"), ("", ""), (7, "7"),
        (141_268_176.0, "1.41e+8"), (999_999.0, "999,999"),
    ],
)  # fmt: skip
def test_one_form_of_numbers(value: Any, text: str) -> None:
    assert figure(value) == text


def test_the_number_of_a_call_is_that_of_its_folder(tmp_path: Path) -> None:
    """Also where only the folder has it, as in the layouts of published tools."""
    parts = {"input": ((torch.ones(2),), {})}
    for layout, expected in (
        ("a/torch.exp/1915/5", 5),
        ("b/torch.exp/77/autocompare/231/2024-10-08-15-20-39/device", 231),
        ("c/0/2024-08-06--11-41/torch.exp/8", 8),
        ("d/2024-08-02--16-31/1915529/torch.exp", None),
    ):
        folder = published(tmp_path / layout, "torch.exp", **parts)
        (item,) = find_items(folder)
        assert read_item(item).forward_id == expected, layout
    (item,) = find_items(linear(tmp_path / "ours"))
    assert read_item(item).forward_id == 268


def test_of_many_values_those_are_shown_that_are_not_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def last_is_wrong(values: Any) -> Any:
        return [*values[:-1], values[-1] + 1]

    folder = capture(tmp_path / "data", torch._foreach_exp, ([torch.ones(2)] * 100,), change=last_is_wrong)
    text = printed(capsys, "replay", folder, *HERE)
    (table,) = tables(text)
    assert len(table.rows) == 40 and table["captured output[99]"]["verdict"] == "fail"
    assert table.names[:2] == ["input[0]", "input[1]"]
    assert "260 rows more: the CSV file has them" in text
