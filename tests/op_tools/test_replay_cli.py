"""The command lines that users were shown, their output and their exit codes."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import capture
from forked_python import run_python

from op_tools import cli, run_op_from_data
from op_tools.commands import replay as command

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    x = torch.randn(10, 20, requires_grad=True)
    return capture(
        tmp_path / "data", torch.Tensor.div, (x, torch.rand(10, 20) + 1), grads=[torch.randn(10, 20)]
    )


def run(*words: Any, program: Any = run_op_from_data.main) -> int:
    with pytest.raises(SystemExit) as ended:
        program([str(word) for word in words])
    code = ended.value.code
    return code if isinstance(code, int) else 0


HERE = ("--device", "cpu", "--workers", "0")


def test_accuracy_check_prints_the_tables_and_saves_the_rows(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tree, "--acc_check", "--run_times", "1", *HERE) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(tree)
    cast = "cpu_dtype_cast_info(from:to): {torch.float32: torch.float64}"
    assert f"torch.Tensor.div forward_id: 1    {cast}" in lines
    header = next(line for line in lines if "max_abs_diff" in line)
    assert [cell.strip() for cell in header.strip("|").split("|")] == [
        "name",
        "allclose",
        "max_abs_diff",
        "max_relative_diff",
        "atol",
        "rtol",
        "error_info",
    ]
    names = [line.split("|")[1].strip() for line in lines if line.startswith("|")]
    for name in ("inputs[0]", "inputs(cpu)[1]", "outputs(cpu)", "grad_inputs(cpu)", "grad_output(cpu)"):
        assert f"torch.Tensor.div {name}" in names
    for name in ("input[0]", "output", "captured output", "grad", "captured grad"):
        assert f"torch.Tensor.div {name}" in names
    saved = [line for line in lines if line.startswith("op autocompare info saved to ")]
    with open(saved[0].rpartition(" ")[2], newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["verdict"] for row in rows} == {"same"}
    assert {row["name"] for row in rows} >= {"torch.Tensor.div output", "torch.Tensor.div grad"}
    assert {row["item"] for row in rows} == {str(tree)}
    assert lines[-1] == "1 call: 1 same"


def test_time_measure_prints_every_run_and_says_where_the_times_are(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tree, "--run_times", "3", "--sync_time_measure", *HERE) == 0
    out = capsys.readouterr().out
    assert "allclose" not in out
    lines = out.splitlines()
    assert sum("forward_elasped | unit" in line for line in lines) == 3
    assert sum("forward_id | backward_elasped | unit" in line for line in lines) == 3
    assert sum("forward_elasped | backward_elasped | unit" in line for line in lines) == 1
    prefix = "op elasped info saved to op_tools_results/op_time_measure_result/op_elasped_info_pid"
    (said,) = [line for line in lines if line.startswith(prefix)]
    with open(said.rpartition(" ")[2], newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert ",".join(rows[0]) == (
        "name,forward_id,forward_elasped,backward_elasped,unit,input,output,grad_inputs,grad_outputs"
    )
    assert [row[:2] for row in rows[1:]] == [["torch.Tensor.div", "1"]] * 3
    assert all(float(row[2]) > 0 and float(row[3]) > 0 for row in rows[1:])


@pytest.mark.parametrize(
    "words", [["--only_run_forward", "True"], ["--only_run_forward"], ["--only-run-forward=true"]]
)
def test_only_forward_in_the_old_and_the_new_way(
    tree: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert run(*words, tree, "--run_times", "3", "--sync_time_measure", *HERE) == 0
    out = capsys.readouterr().out
    assert "forward_elasped" in out
    assert "backward" not in out


def test_switches_with_values_are_read() -> None:
    words = [
        "DIR",
        "--acc_check",
        "False",
        "--sync_time_measure",
        "true",
        "--only-run-forward=0",
        "--run_times",
        "3",
    ]
    assert command.normalised(words) == [
        "DIR",
        "--no_acc_check",
        "--sync_time_measure",
        "--no_only_run_forward",
        "--run_times",
        "3",
    ]
    assert command.normalised(["--acc_check", "DIR"]) == ["--acc_check", "DIR"]


def test_exit_codes(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tree, *HERE, "--quiet") == 0
    wrong = capture(tmp_path / "wrong", torch.exp, (torch.rand(9),), change=lambda y: y * 2)
    assert run(wrong, *HERE, "--quiet") == 1
    refused = capture(tmp_path / "refused", lambda *_: None, ("x",), name="os.system", outputs=False)
    assert run(refused, *HERE) == 1
    assert "refused  os.system" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty", *HERE) == 5
    assert "no captured call" in capsys.readouterr().err
    opaque = capture(
        tmp_path / "o", lambda *_: None, (torch.ones(1), object()), name="torch.add", outputs=False
    )
    assert run(opaque, *HERE) == 5
    assert run(tmp_path / "no such folder") == 2
    assert run(tree, "--no-such-option") == 2
    assert run(tree, "--run_times", "0") == 2
    assert run(tree, "--device", "nochip") == 2
    assert "not a device of this machine" in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_the_memory_limit_is_a_size(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tree, "--memory-limit", "100M", *HERE) == 0
    assert run(tree, "--memory-limit", "0.1K", *HERE) == 1
    assert "refused" in capsys.readouterr().out
    assert run(tree, "--memory-limit", "much", *HERE) == 2
    assert "--memory-limit: expected a number of bytes such as 4096, 64K or 2G" in capsys.readouterr().err


def test_our_own_errors_and_interruptions_have_codes_of_their_own(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise LookupError("a bug")

    monkeypatch.setattr(command, "replay", broken)
    assert run(tree, *HERE) == 3
    assert "a bug" in capsys.readouterr().err

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "replay", interrupted)
    assert run(tree, *HERE) == 130


def test_json_is_one_document_and_nothing_else(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("replay", tree, "--json", *HERE, program=cli.main) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == 0 and document["counts"] == {"same": 1}
    (item,) = document["items"]
    assert (item["name"], item["status"], item["item"]) == ("torch.Tensor.div", "same", str(tree))
    assert {row["name"] for row in item["rows"]} >= {
        "torch.Tensor.div output",
        "torch.Tensor.div captured grad",
    }
    assert item["times"][0]["forward_elasped"] > 0


def test_many_calls_print_only_what_needs_attention(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(1, 24):
        change = (lambda y: y * 2) if number == 7 else (lambda y: y)
        capture(tmp_path / "data", torch.exp, (torch.rand(9),), forward_id=number, change=change)
    assert run(tmp_path / "data", *HERE, "--out", tmp_path / "out") == 1
    out = capsys.readouterr().out
    assert out.count("| torch.exp output ") == 1
    assert out.splitlines()[-1] == "23 calls: 22 same, 1 fail"
    assert run(tmp_path / "data", *HERE, "--verbose", "--out", tmp_path / "out") == 1
    assert capsys.readouterr().out.count("| torch.exp output ") == 23


def test_export_makes_complete_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from op_tools.storage import CallInfo, CaptureStore

    x = torch.randn(300)
    with CaptureStore(tmp_path / "data", kind="blobs") as store:
        store.put(CallInfo("torch.exp", 1), "input", (x,), {})
    assert run("export", tmp_path / "data", tmp_path / "out", program=cli.main) == 0
    (path,) = (tmp_path / "out").rglob("input.pth")
    assert torch.equal(torch.load(path, weights_only=True)["args"][0], x)
    assert run("export", tmp_path / "out", tmp_path / "out2", program=cli.main) == 0
    (tmp_path / "empty").mkdir()
    assert run("export", tmp_path / "empty", tmp_path / "out3", program=cli.main) == 5


def test_the_promised_script_runs_from_the_root_of_the_project(tree: Path) -> None:
    script = Path("op_tools/run_op_from_data.py")
    assert (ROOT / script).is_file() and not (ROOT / "op_tools/__init__.py").exists()
    words = [str(script), str(tree), "--acc_check", "--run_times", "1", "--out", str(tree)]
    done = run_python(*words, cwd=ROOT, env=environment())
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert str(tree) in lines[:2]  # after the line in which ditorch says which device it chose
    assert lines[-1] == "1 call: 1 same"


def test_the_module_runs_in_a_process_of_its_own(tree: Path) -> None:
    words = ["-m", "op_tools.run_op_from_data", str(tree), "--workers", "1", "--json"]
    done = run_python(*words, cwd=tree, env=environment())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"] == {"same": 1}


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}
