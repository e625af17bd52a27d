"""OpTimeMeasure: how long calls take on the device, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import op_tools
from op_tools.engine import ENGINE

D = "dipu"


def test_rows_with_times_of_forward_and_backward_in_milliseconds(rows: Any, capfd: Any) -> None:
    x = torch.randn(64, 64, device=D, requires_grad=True)
    with op_tools.OpTimeMeasure():
        y = torch.nn.functional.gelu(x @ x)
        y.sum().backward()
        x.detach().neg()
    table = {row["name"]: row for row in rows("op_time_measure_result")}
    assert list(table) == [
        "torch.Tensor.matmul",
        "torch.nn.functional.gelu",
        "torch.Tensor.sum",
        "torch.Tensor.detach",
        "torch.Tensor.neg",
    ]
    for name in ("torch.Tensor.matmul", "torch.nn.functional.gelu", "torch.Tensor.sum"):
        row = table[name]
        assert 0 < float(row["forward_elasped"]) < 1000 and 0 < float(row["backward_elasped"]) < 1000
        assert row["unit"] == "ms" and row["grad_outputs"].startswith("[float32")
    assert (
        table["torch.Tensor.neg"]["backward_elasped"] == ""
        and float(table["torch.Tensor.neg"]["forward_elasped"]) > 0
    )
    assert table["torch.Tensor.matmul"]["grad_inputs"] == "[float32[64, 64]@dipu:0, None]"
    out = capfd.readouterr().out
    assert "op elasped info saved to op_tools_results/op_time_measure_result/op_elasped_info_pid" in out


@pytest.mark.parametrize("sync", [False, True])
def test_the_time_is_the_devices_not_that_of_queueing(sync: bool, rows: Any, quiet_device: None) -> None:
    x = torch.ones(4, device=D, requires_grad=True)
    torch.dipu.synchronize()
    torch.dipu.configure(**{"async": 1, "delay_us": 20000})
    with op_tools.OpTimeMeasure(sync=sync):
        (x * 2).sum().backward()
    times = {row["name"]: row for row in rows("op_time_measure_result")}
    for name in ("torch.Tensor.mul", "torch.Tensor.sum"):
        assert 15 < float(times[name]["forward_elasped"]) < 500
    assert 15 < float(times["torch.Tensor.mul"]["backward_elasped"]) < 500


def test_the_summary_adds_up_by_operator_and_by_line(capfd: Any) -> None:
    x = torch.ones(8, device=D, requires_grad=True)
    with op_tools.OpTimeMeasure() as tool:
        for _ in range(3):
            y = x * 2
        z = x * 3
        (y + z).sum().backward()
    assert tool.by_operator["torch.Tensor.mul"][0] == 4
    assert sorted(count for (name, _), (count, *_) in tool.by_site.items() if name == "torch.Tensor.mul") == [
        1,
        3,
    ]
    forward = sum(f for name, (_, f, _) in tool.by_operator.items() if name == "torch.Tensor.mul")
    by_site = sum(f for (name, _), (_, f, _) in tool.by_site.items() if name == "torch.Tensor.mul")
    assert forward == pytest.approx(by_site) and tool.by_operator["torch.Tensor.mul"][2] > 0
    out = capfd.readouterr().out
    lines = [line for line in out.splitlines() if "torch.Tensor.mul" in line and line.startswith("|")]
    assert len(lines) == 3 and any("test_time_measure.py:" in line for line in lines)
    shares = [
        float(line.split("|")[-2].strip().rstrip("%"))
        for line in out.splitlines()
        if line.startswith("| ") and "%" in line
    ]
    assert sum(shares[: len(tool.by_operator)]) == pytest.approx(100, abs=0.5)


def test_the_backward_of_a_composite_is_measured_as_a_whole(rows: Any) -> None:
    x = torch.randn(2, 4, 8, device=D, requires_grad=True)
    with op_tools.OpTimeMeasure():
        torch.nn.functional.multi_head_attention_forward(
            x, x, x, 8, 2, torch.randn(24, 8, device=D), torch.zeros(24, device=D), None, None, False, 0.0,
            torch.randn(8, 8, device=D), torch.zeros(8, device=D), training=False,
        )[0].sum().backward()  # fmt: skip
    (row,) = [
        row for row in rows("op_time_measure_result") if row["name"].endswith("multi_head_attention_forward")
    ]
    assert float(row["backward_elasped"]) > 0 and row["grad_inputs"].startswith("[float32[2, 4, 8]@dipu:0")


def test_rows_are_written_as_they_come_and_wait_for_their_backward(rows: Any) -> None:
    x = torch.ones(2, device=D, requires_grad=True)
    tool = op_tools.OpTimeMeasure(max_cache_size=4)
    with tool:
        waiting = x * 5
        for _ in range(20):
            x.detach().neg()
        tool.results.flush()
        assert len(rows("op_time_measure_result")) >= 36 and len(tool._entries) < 8
        waiting.sum().backward()
    (row,) = [row for row in rows("op_time_measure_result") if row["name"] == "torch.Tensor.mul"]
    assert float(row["backward_elasped"]) > 0


def test_a_graph_that_is_never_run_backward_does_not_pile_up(
    monkeypatch: pytest.MonkeyPatch, rows: Any
) -> None:
    monkeypatch.setattr(op_tools.OpTimeMeasure, "most_waiting", 10)
    x = torch.ones(2, device=D, requires_grad=True)
    with op_tools.OpTimeMeasure(max_cache_size=5) as tool:
        for _ in range(50):
            x * 2
            assert len(tool._entries) <= 11
    assert len(rows("op_time_measure_result")) == 50


def test_kernels_and_lists(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_TIME_MEASURE_LIST", r"aten\.(mul|sum).*")
    monkeypatch.setenv("OP_TIME_MEASURE_LEVEL", "aten")
    x = torch.ones(2, device=D, requires_grad=True)
    with op_tools.OpTimeMeasure():
        (x * 2).sum().backward()
    assert [(row["name"], row["phase"]) for row in rows("op_time_measure_result")] == [
        ("aten.mul.Tensor", "forward"), ("aten.sum.default", "forward"), ("aten.mul.Tensor", "backward"),
    ]  # fmt: skip


def test_verbose_prints_the_documents_tables(capfd: Any) -> None:
    x = torch.ones(2, device=D, requires_grad=True)
    with op_tools.OpTimeMeasure(verbose=True, list="torch.mul"):
        torch.mul(x, 2).sum().backward()
    out = capfd.readouterr().out
    assert (
        "apply OpTimeMeasureHook on torch.mul" in out and "skip OpTimeMeasureHook on torch.Tensor.sum" in out
    )
    header = [line for line in out.splitlines() if "forward_elasped" in line and "forward_id" in line]
    assert header and all("unit" in line for line in header)
    assert any("backward_elasped" in line for line in out.splitlines())
    assert "torch.mul grad_outputs [0][0]" in out


def test_a_call_that_fails_is_not_measured(rows: Any) -> None:
    x = torch.ones(2, device=D)
    with op_tools.OpTimeMeasure():
        with pytest.raises(RuntimeError):
            x + torch.ones(3, device=D)
        x.neg()
    assert [row["name"] for row in rows("op_time_measure_result")] == ["torch.Tensor.neg"]
    assert ENGINE.failures.seen == {}


def test_calls_that_wait_for_backward_are_not_gone_through_at_every_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.ones(2, device=D, requires_grad=True)
    times = []
    write = op_tools.OpTimeMeasure._write
    monkeypatch.setattr(op_tools.OpTimeMeasure, "_write", lambda *a, **k: (times.append(1), write(*a, **k)))
    with op_tools.OpTimeMeasure(max_cache_size=10) as tool:
        for _ in range(200):
            x * 2
        assert len(tool._entries) == 200 and len(times) <= 20


def test_a_partial_backward_leaves_the_sums_as_they_are(rows: Any, capfd: Any) -> None:
    x = torch.ones(2, device=D, requires_grad=True)
    w = torch.ones(2, 2, device=D, requires_grad=True)
    with op_tools.OpTimeMeasure() as tool:
        y = torch.nn.functional.multi_head_attention_forward(
            x.expand(2, 1, 2), w.expand(2, 2, 2)[:, :1], w.expand(2, 2, 2)[:, :1], 2, 1,
            torch.ones(6, 2, device=D), torch.zeros(6, device=D), None, None, False, 0.0, torch.ones(2, 2, device=D),
            torch.zeros(2, device=D), training=False,
        )[0]  # fmt: skip
        torch.autograd.grad(y.sum(), x)
    assert "nan" not in capfd.readouterr().out
    assert all(value == value for sums in tool.by_operator.values() for value in sums)  # noqa: PLR0124
    assert all(row["backward_elasped"] != "nan" for row in rows("op_time_measure_result"))


def test_the_backward_of_an_earlier_run_finds_no_entry_of_the_next(rows: Any) -> None:
    x = torch.ones(2, device=D, requires_grad=True)
    tool = op_tools.OpTimeMeasure()
    with tool:
        y = x * 2
    with tool:
        x * 3
        y.backward(torch.ones_like(y))
        assert [row["name"] for row, clock in tool._entries if clock.waits] == ["torch.Tensor.mul"]
    measured = [row["backward_elasped"] for row in rows("op_time_measure_result") if "mul" in row["name"]]
    assert measured == ["", ""]
