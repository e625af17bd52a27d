"""OpCapture and OpObserve at ATen level: each call by itself, tied to the API call it belongs to; and runs kept apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import op_tools
from op_tools.runs import open_run

pytestmark = pytest.mark.device

D = "dipu"


def step() -> None:
    x = torch.ones(3, 4, device=D, requires_grad=True)
    w = torch.ones(2, 4, device=D, requires_grad=True)
    F.linear(x, w).sum().backward()


@pytest.mark.parametrize("tool", ["OpCapture", "OpObserve"])
def test_kernels_in_backward_name_their_forward_call(tool: str) -> None:
    with getattr(op_tools, tool)(level="aten", results="r"):
        step()
    rows = list(open_run("r").rows("capture" if tool == "OpCapture" else "observe"))
    products = [row for row in rows if row["name"] == "aten.mm.default" and row["phase"] == "backward"]
    assert len(products) == 2
    assert {row["forward_name"] for row in products} == {"torch.nn.functional.linear"}
    assert all("F.linear(x, w).sum().backward()" in row["call_site"] for row in products)
    forward = next(row for row in rows if row["name"] == "aten.mm.default" and row["phase"] == "forward")
    assert {row["forward_id"] for row in products} == {forward["forward_id"]}
    assert all(row["level"] == "aten" for row in rows)


def test_calls_of_one_function_have_folders_of_their_own() -> None:
    with op_tools.OpCapture(level="aten", results="r"):
        step()
    run = open_run("r")
    folders = [row["folder"] for row in run.rows("capture")]
    assert len(folders) == len(set(folders)) > 5 and run.captures is not None
    assert all((run.captures / folder / "input.pth").exists() for folder in folders)


def written(folder: str) -> dict[str, Any]:
    (path,) = Path(folder).rglob("output.pth")
    return op_tools.load(path)["kwargs"]


def test_what_a_call_writes_and_does_not_return_is_captured() -> None:
    first, second = torch.ones(2, device=D), torch.ones(3, device=D)
    with op_tools.OpCapture(level="aten", list="aten._foreach_mul_.Scalar", results="foreach"):
        torch._foreach_mul_([first, second], 3.0)
    assert [tensor.tolist() for tensor in written("foreach")["written"]] == [[3.0] * 2, [3.0] * 3]
    mean, variance = torch.zeros(2, device=D), torch.ones(2, device=D)
    with op_tools.OpCapture(list="torch.nn.functional.batch_norm", results="norm"):
        F.batch_norm(torch.full((4, 2), 10.0, device=D), mean, variance, training=True)
    found = [tensor.tolist() for tensor in written("norm")["written"]]
    assert found == [[1.0, 1.0], pytest.approx([0.9, 0.9])]
    with op_tools.OpCapture(list="torch.Tensor.add_", results="returned"):
        first.add_(1)
    assert written("returned") == {}


def test_a_clean_run_is_not_taken_for_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(2, device=D)
    for name, divide in (("first", True), ("second", False)):
        monkeypatch.setenv("OP_TOOLS_RUN_ID", name)
        with op_tools.OpOverflowCheck(results="r"):
            x / x if divide else x + 1
        run = open_run("r")
        assert (len(list(run.rows("overflow_check"))), run.older) == ((1, 0) if divide else (0, 1))
