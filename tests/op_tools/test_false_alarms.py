"""A correct device is never accused: whole train steps of three models, plain and reordered, in three dtypes."""

from __future__ import annotations

import csv

import pytest
import torch
from small_trainings import DEVICE, TRAININGS

import op_tools

pytestmark = pytest.mark.device


@pytest.fixture(params=["plain", "reordered"])
def numerics(request):
    if DEVICE != "dipu":
        pytest.skip(f"{DEVICE} has one kind of arithmetic only")
    torch.dipu.configure(numerics=request.param)
    yield request.param
    torch.dipu.configure(numerics="plain")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("model", TRAININGS)
def test_no_false_alarm_in_a_train_step(model, dtype, numerics, tmp_path, capfd):
    with op_tools.OpAutoCompare(results=str(tmp_path)) as compare:
        TRAININGS[model].run(2, dtype=dtype)
    [table] = (tmp_path / "op_autocompare_result").glob("*.csv")
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    accused = [(row["name"], row["reason"]) for row in rows if row["verdict"] in {"fail", "lower_precision"}]
    assert accused == []
    assert compare.counts["same"] > 100
    if numerics == "reordered":
        assert compare.counts["pass"] >= 3  # it really computes in another order
    backward = [row for row in rows if row["phase"] == "backward"]
    assert len(backward) > 50 and any(row["forward_name"] for row in backward)
    assert "could not handle" not in capfd.readouterr().err


def test_a_copy_into_part_of_a_tensor_is_not_accused_of_its_gradient(tmp_path):
    with op_tools.OpAutoCompare(results=str(tmp_path)) as compare:
        source = torch.randn(2, 8, device=DEVICE, requires_grad=True)
        target = torch.randn(4, 8, device=DEVICE, requires_grad=True) * 2
        target[1:3].copy_(source)
        (target * torch.randn(4, 8, device=DEVICE)).sum().backward()
    assert "fail" not in compare.counts and compare.counts["same"] > 10
    [table] = (tmp_path / "op_autocompare_result").glob("*.csv")
    notes = [
        row["error_info"] for row in csv.DictReader(table.open(newline="")) if row["verdict"] == "skipped"
    ]
    assert len(notes) == 1 and notes[0].endswith("judged at ATen level only")
