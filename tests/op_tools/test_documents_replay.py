"""The commands of the product documents that run captured operators again, from the repository's root."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from forked_python import run_python
from printed import COMPARED, FACTS, SITE, STAMP, after, tables, with_rows

import op_tools

pytestmark = pytest.mark.device

ROOT = Path(__file__).resolve().parent.parent.parent
NAME = "torch.nn.functional.normalize"
VALUES = (*FACTS, "value")
KEYWORDS = ("p", "dim", "eps", "out")


@pytest.fixture
def captured(tmp_path: Path) -> Path:
    """A folder of one captured call, forward and backward."""
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).to("dipu", torch.bfloat16)
    x.requires_grad_()
    with op_tools.OpCapture(list=NAME):
        F.normalize(x).sum().backward()
    return tmp_path / "op_tools_results" / "op_capture_results" / NAME


def replay(*arguments: str, folder: Path = ROOT, script: str = "op_tools/run_op_from_data.py") -> str:
    environment = {**os.environ, "OP_TOOLS_VERBOSE": "1", "OMP_NUM_THREADS": "1"}
    done = run_python(script, *arguments, cwd=folder, env=environment, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def beginning(text: str, captured: Path) -> str:
    """The first lines: what the device is, and the folder of the item. Gives what follows."""
    head = rf"ditorch\.framework: torch_dipu:\S+ \(host\)\n{re.escape(str(captured))}/\d+/\d+/{STAMP}\n\n\n"
    match = re.match(head, text)
    assert match is not None, text[:600]
    return text[match.end() :]


def number_of(captured: Path) -> str:
    """The number of the captured call: that of its folder."""
    (folder,) = captured.glob("*/*")
    return folder.name


def rows(what: str, keywords: bool = True) -> list[str]:
    return [f"{NAME} {what}", *(f"{NAME} {what} {keyword}" for keyword in KEYWORDS if keywords)]


def test_accuracy_check(captured: Path, tmp_path: Path) -> None:
    text = replay(f"{captured}/", "--acc_check", "--run_times", "1", "--out", str(tmp_path))
    rest = beginning(text, captured)
    cast = re.escape("    cpu_dtype_cast_info(from:to): {torch.bfloat16: torch.float64}")
    heading = rf"{re.escape(NAME)} forward_id: {number_of(captured)}{cast}\n{SITE}.*F\.normalize\(x\).*"
    assert len(re.findall(rf"^{heading}$", rest, re.M)) == 2, "forward and backward"

    facts, compared = after(rest, heading, 2)
    both = [*rows("inputs"), f"{NAME} outputs", *rows("inputs(cpu)"), f"{NAME} outputs(cpu)"]
    assert (facts.columns, facts.names) == (VALUES, both)
    assert [facts[f"{NAME} inputs {keyword}"]["value"] for keyword in KEYWORDS] == [
        "2.0",
        "1",
        "1e-12",
        "None",
    ]
    assert {facts[f"{NAME} {side}(cpu)"]["dtype"] for side in ("inputs", "outputs")} == {"float64"}
    assert compared.columns == COMPARED
    assert compared.names[:2] == [f"{NAME} input", f"{NAME} output"]
    for name in compared.names[:2]:
        shown = [compared[name][column] for column in ("allclose", "atol", "rtol", "error_info")]
        assert shown == ["True", "0.001000000", "0.001000000", ""]

    grads = [f"{NAME} grad_output(cpu)", f"{NAME} grad_inputs", f"{NAME} grad_inputs(cpu)"]
    table = with_rows(rest, FACTS, *grads)
    assert [row["device"] for row in table.rows] == ["cpu", "dipu:0", "cpu"]
    backward = tables(rest)[3]
    assert backward.columns == COMPARED and backward.names[0] == f"{NAME} grad"
    assert "Inconsistent dtypes" not in text


def test_three_timed_runs(captured: Path, tmp_path: Path) -> None:
    text = replay(f"{captured}/", "--sync_time_measure", "--run_times", "3", "--out", str(tmp_path))
    rest = beginning(text, captured)
    assert len(re.findall(rf"^{SITE}.*F\.normalize\(x\).*$", rest, re.M)) == 3
    grads = [f"{NAME} grad_outputs [0][0]", f"{NAME} grad_inputs [0][0]"]
    forward, backward = (
        ("name", "forward_id", "forward_elasped", "unit"),
        ("name", "forward_id", "backward_elasped", "unit"),
    )
    shown, number = tables(rest), number_of(captured)
    for run in range(3):
        values, forward_time, gradients, backward_time = shown[4 * run : 4 * run + 4]
        assert (values.columns, values.names) == (VALUES, [*rows("inputs"), f"{NAME} outputs"])
        assert (gradients.columns, gradients.names) == (FACTS, grads)
        assert (forward_time.columns, backward_time.columns) == (forward, backward)
        assert forward_time.rows[0]["forward_id"] == backward_time.rows[0]["forward_id"] == number
        assert re.fullmatch(r"\d+\.\d{8}", backward_time.rows[0]["backward_elasped"])
    (summary,) = shown[12:]
    assert summary.columns == ("name", "forward_id", "forward_elasped", "backward_elasped", "unit")
    assert [row["forward_id"] for row in summary.rows] == [number] * 3
    assert {row["unit"] for row in summary.rows} == {"ms"}
    last = rest.splitlines()[-1]
    pattern = rf"op elasped info saved to (\S+/op_time_measure_result/op_elasped_info_pid\d+_{STAMP}\.csv)"
    match = re.fullmatch(pattern, last)
    assert match is not None, last
    assert len(Path(match[1]).read_text().splitlines()) == 4


def test_three_forward_runs_from_the_folder_of_the_script(captured: Path, tmp_path: Path) -> None:
    (item,) = captured.glob("*/*")
    options = ("--run_times", "3", "--only_run_forward", "--sync_time_measure", "--out", str(tmp_path))
    text = replay(str(item), *options, folder=ROOT / "op_tools", script="run_op_from_data.py")
    columns = [table.columns for table in tables(beginning(text, captured))]
    time = ("name", "forward_id", "forward_elasped", "unit")
    assert columns == [VALUES, time] * 3 + [time]
    assert "grad" not in re.sub("requires_grad", "", text)
