"""OpObserve: what every call is called with and returns."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch

import op_tools
from op_tools.engine import ENGINE

D = "dipu"


def test_a_row_for_each_call_with_inputs_as_they_went_in(rows: Any, capfd: Any) -> None:
    x = torch.ones(2, 3, device=D)
    with op_tools.OpObserve():
        x.t().add_(1)
        torch.sum(x, dim=1, keepdim=True)
        torch.cat([x, x])
    table = rows("op_observe_result")
    assert [row["name"] for row in table] == ["torch.Tensor.t", "torch.Tensor.add_", "torch.sum", "torch.cat"]
    assert table[1]["input"] == "(float32[3, 2]@dipu:0 stride [1, 3], 1)"
    assert (
        table[2]["input"] == "(float32[2, 3]@dipu:0, dim=1, keepdim=True)"
        and table[2]["output"] == "float32[2, 1]@dipu:0"
    )
    assert table[3]["input"] == "([float32[2, 3]@dipu:0, float32[2, 3]@dipu:0])"
    numbers = [int(row["forward_id"]) for row in table]
    assert numbers == list(range(numbers[0], numbers[0] + 4))
    assert all(row["call_site"].startswith(__file__) for row in table) and {
        row["phase"] for row in table
    } == {"forward"}
    out = capfd.readouterr().out
    assert out.count("apply OpObserveHook on torch.sum\n") == 1 and "OpObserve saw 4 calls" in out


def test_the_level_of_kernels_shows_backward_too(rows: Any) -> None:
    x = torch.ones(2, 2, device=D, requires_grad=True)
    with op_tools.OpObserve(level="aten", list=r"aten\.mm.*"):
        (x @ x).sum().backward()
    table = rows("op_observe_result")
    assert [(row["name"], row["phase"]) for row in table] == [("aten.mm.default", "forward")] + [
        ("aten.mm.default", "backward")
    ] * 2


def test_verbose_prints_the_tables(capfd: Any) -> None:
    x = torch.arange(3.0, device=D)
    with op_tools.OpObserve(verbose=True, list="torch.Tensor.sort"):
        x.sort(descending=True)
        x.neg()
    out = capfd.readouterr().out
    for text in ("apply OpObserveHook on torch.Tensor.sort", "torch.Tensor.sort    forward_id: ", "torch.Tensor.sort inputs",
                 "torch.Tensor.sort inputs descending", "torch.Tensor.sort outputs [0][0]",
                 "skip OpObserveHook on torch.Tensor.neg"):  # fmt: skip
        assert text in out


def test_two_runs_of_one_tool_are_two_files_or_one_with_one_header(own_place: Any) -> None:
    tool = op_tools.OpObserve(max_cache_size=1)
    for _ in range(2):
        with tool:
            for _ in range(3):
                torch.ones(1, device=D).neg()
    lines = [line for file in own_place.rglob("*.csv") for line in file.read_text().splitlines()]
    assert sum(line.startswith("forward_id,") for line in lines) == len(list(own_place.rglob("*.csv")))
    assert sum("torch.Tensor.neg" in line for line in lines) == 6


def test_a_call_that_fails_leaves_no_row(rows: Any) -> None:
    x = torch.ones(2, device=D)
    with op_tools.OpObserve():
        with contextlib.suppress(RuntimeError):
            x + torch.ones(3, device=D)
        x.neg()
    assert [row["name"] for row in rows("op_observe_result")] == ["torch.Tensor.neg"]
    assert ENGINE.failures.seen == {}


def test_a_forked_child_does_not_write_the_rows_of_its_parent(run_python: Any, tmp_path: Path) -> None:
    printed = run_python(
        f"""
        import os, torch, torch_dipu, op_tools
        from op_tools.runs import open_run

        tool = op_tools.OpObserve(results={str(tmp_path)!r})
        tool.start()
        x = torch.ones(3, device="dipu")
        y = x + x
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
        tool.stop()
        print("rows", [row["name"] for row in open_run({str(tmp_path)!r}).rows("observe")])
        """
    )
    assert "rows ['torch.Tensor.add']" in printed or "rows ['torch.Tensor.__add__']" in printed, printed
