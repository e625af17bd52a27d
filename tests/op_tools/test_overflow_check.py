"""OpOverflowCheck: the call in which a NaN or an Inf is born, not those that pass it on."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import op_tools
from op_tools.engine import ENGINE
from op_tools.tools.overflow_check import CLEAN, NonFinite, asked_for, find

D = "dipu"
INF = float("inf")


def line() -> int:
    """The line of the caller."""
    return sys._getframe(1).f_lineno


def test_what_a_tensor_holds() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e5m2):
        for values, expected in (([1.0, 2], CLEAN), ([1, INF], NonFinite.INF), ([float("nan"), 1], NonFinite.NAN),
                                 ([-INF, INF], NonFinite.INF), ([INF, float("nan")], NonFinite.NAN | NonFinite.INF)):  # fmt: skip
            assert find(torch.tensor(values).to(dtype).to(D)) == expected, (dtype, values)
    assert find(torch.full((8,), 60000.0, dtype=torch.float16, device=D)) == CLEAN  # their sum is not a half
    assert find(torch.full((8,), 3e38, device=D)) == CLEAN
    assert find(torch.tensor([1 + 1j, complex(0, INF)], device=D)) == NonFinite.INF
    assert find(torch.ones(2, dtype=torch.int64, device=D)) == find(torch.ones(0, device=D)) == CLEAN
    assert find(torch.tensor([[0, INF]]).to_sparse()) == NonFinite.INF
    assert asked_for((1.0, [-INF], {"value": float("nan")})) == NonFinite.NAN | NonFinite.INF


def test_the_first_birth_is_said_with_its_place_and_inputs(capfd: Any, rows: Any) -> None:
    x = torch.zeros(2, device=D)
    with op_tools.OpOverflowCheck() as tool:
        y = x + 1
        here = line() + 1
        z = torch.log(x * y)
        (z * 2).sum()
        torch.sqrt(-y)
    out = capfd.readouterr().out
    assert "first Inf: born in aten.log.default, forward" in out and f"{__file__}:{here} " in out
    assert out.count("born in") == 1 and "finite inputs" in out and "float32[2]@dipu:0" in out
    assert tool.births == 2 and tool.seen == 2
    table = rows("op_overflow_check_result")
    assert [(row["name"], row["kind"], row["status"]) for row in table] == [
        ("aten.log.default", "Inf", "born"), ("aten.sqrt.default", "NaN", "born"),
    ]  # fmt: skip
    assert "2 made a NaN or Inf" in out and "2 passed one on" in out


def test_a_clean_run_says_so_and_writes_nothing(capfd: Any, rows: Any) -> None:
    with op_tools.OpOverflowCheck() as tool:
        torch.ones(3, device=D).softmax(0).sum()
    assert tool.births == tool.seen == 0 and tool.checked == 2
    assert "checked 2 calls: all finite" in capfd.readouterr().out
    assert rows("op_overflow_check_result") == []


def test_infinities_the_program_asks_for_are_no_births() -> None:
    scores = torch.randn(4, 4, device=D)
    mask = torch.ones(4, 4, dtype=torch.bool, device=D).triu(1)
    with op_tools.OpOverflowCheck() as tool:
        a = scores.masked_fill(mask, -INF)
        b = scores + torch.full((4, 4), -INF, device=D).triu(1)
        c = torch.where(mask, torch.tensor(-INF, device=D), scores)
        full = torch.full_like(scores, INF)
        for value in (a, b, c):
            value.softmax(-1).sum()
        scores.clone().masked_fill_(mask, -INF).amax(-1)
        torch.nn.functional.scaled_dot_product_attention(
            scores[None], scores[None], scores[None], is_causal=True
        )
        full.fill_(INF)
    assert tool.births == 0 and tool.seen > 0


def test_a_nan_made_of_infinities_is_a_birth(rows: Any) -> None:
    x = torch.full((2, 3), -INF, device=D)
    with op_tools.OpOverflowCheck() as tool:
        y = x.softmax(-1)  # a row with nothing left
        x - x
        y + 1
    assert tool.births == 2 and tool.seen == 1
    assert [row["name"] for row in rows("op_overflow_check_result")] == [
        "aten._softmax.default",
        "aten.sub.Tensor",
    ]
    assert {row["kind"] for row in rows("op_overflow_check_result")} == {"NaN"}


def test_births_in_backward_name_the_forward_line(capfd: Any, rows: Any) -> None:
    x = torch.zeros(3, device=D, requires_grad=True)
    with op_tools.OpOverflowCheck() as tool:
        here = line() + 1
        y = torch.sqrt(x)
        y.sum().backward()
    assert tool.births >= 1
    row = rows("op_overflow_check_result")[0]
    assert row["phase"] == "backward" and row["forward_name"] == "torch.sqrt"
    assert row["call_site"].startswith(f"{__file__}:{here} ") and row["kind"] == "Inf"
    assert "backward of torch.sqrt (forward_id" in capfd.readouterr().out


def test_births_in_place_and_through_out(rows: Any) -> None:
    with op_tools.OpOverflowCheck() as tool:
        x = torch.ones(4, device=D)
        x.mul_(2)
        x[1:3].div_(0)
        x.add_(1)  # passes it on
        target = torch.empty(4, device=D)
        torch.log(torch.zeros(4, device=D), out=target)
        target.mul_(1)
    assert [row["name"] for row in rows("op_overflow_check_result")] == ["aten.div_.Tensor", "aten.log.out"]
    assert tool.births == 2 and tool.seen >= 2


def test_data_that_comes_in_bad_is_not_born_in_the_first_call_that_writes_it() -> None:
    data = torch.tensor([1.0, float("nan")])
    with op_tools.OpOverflowCheck() as tool:
        x = data.to(D)
        x.add_(1)
        x.mul_(2)
        (x + 1).sum()
    assert tool.births == 0 and tool.seen == 4


def test_memory_that_was_given_back_is_forgotten() -> None:
    with op_tools.OpOverflowCheck() as tool:
        bad = torch.zeros(1000, device=D).log_()
        address = bad.data_ptr()
        del bad
        fresh = torch.empty(1000, device=D)
        fresh.fill_(0)
        fresh.log_()
    assert tool.births == 2 and fresh.data_ptr() == address


def test_a_birth_in_the_optimizer_is_found(rows: Any) -> None:
    parameter = torch.nn.Parameter(torch.ones(2, device=D))
    optimizer = torch.optim.SGD([parameter], lr=1e38, foreach=False)
    with op_tools.OpOverflowCheck(verbose=False) as tool:
        for _ in range(3):
            (parameter * 100).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    first = rows("op_overflow_check_result")[0]
    assert first["name"].startswith("aten.add_") and first["phase"] == "forward" and tool.births >= 1
    assert "sgd" in first["call_site"] or "step" in first["call_site"]


def test_half_precision_overflow_in_a_model_is_tied_to_its_module(rows: Any) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    net = Net().half()
    with torch.no_grad():
        for layer in net.layers:
            layer.weight.fill_(50)
    net.to(D)
    with op_tools.OpOverflowCheck():
        net(torch.ones(1, 4, device=D, dtype=torch.float16) * 4)
    first = rows("op_overflow_check_result")[0]
    assert first["kind"] == "Inf" and first["module"] == "Net.layers.1"


def test_lists_levels_and_odd_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    zero = torch.zeros(2, device=D)
    with op_tools.OpOverflowCheck(list="torch.sqrt") as tool:
        torch.log(zero)
        torch.sqrt(zero - 1)
    assert tool.births == 1 and tool.first["name"] == "aten.sqrt.default"
    with op_tools.OpOverflowCheck(disable_list="torch.log") as tool:
        torch.log(zero)
        torch.sqrt(zero - 1)
    assert tool.births == 1
    monkeypatch.setenv("OP_OVERFLOW_CHECK_LEVEL", "api")
    with op_tools.OpOverflowCheck() as tool:
        torch.log(zero)
        zero.log_()
        zero.add_(1)
    assert tool.births == 2 and tool.first["name"] == "torch.log" and tool.seen == 1
    assert ENGINE.failures.seen == {}


def test_many_births_are_counted_and_few_are_written(rows: Any) -> None:
    with op_tools.OpOverflowCheck(max_rows=3) as tool:
        for _ in range(10):
            torch.log(torch.zeros(1, device=D))
    assert tool.births == 10 and len(rows("op_overflow_check_result")) == 3


def test_births_in_calls_that_return_nothing(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = torch.ones(2, device=D), torch.ones(3, device=D)
    with op_tools.OpOverflowCheck() as tool:
        torch._foreach_div_([p, q], 0.0)
        p.mul_(1.0)
    assert tool.births == 1 and tool.seen == 1
    (row,) = rows("op_overflow_check_result")
    assert row["name"].startswith("aten._foreach_div_.") and row["output"].startswith("[float32[2]@dipu:0")
    monkeypatch.setenv("OP_OVERFLOW_CHECK_LEVEL", "api")
    x = torch.ones(4, device=D)
    with op_tools.OpOverflowCheck() as tool:
        x[1] = torch.tensor(3e38, device=D) * 10
        x.add_(1)
        y = torch.ones(2, device=D, dtype=torch.float16)
        y[0] = torch.tensor(1e30, device=D)
        y.add_(1)
    assert tool.births == 2 and tool.seen == 3


def test_what_was_known_of_a_memory_does_not_hide_a_later_birth() -> None:
    with op_tools.OpOverflowCheck() as tool:
        buffer = torch.zeros(2, 2, device=D)
        buffer.log_()
        buffer[0].zero_()
        buffer[1].zero_()
        buffer.log_()
    assert tool.births == 2


def test_what_an_operator_left_out_has_written_is_not_born_in_the_next_one() -> None:
    with op_tools.OpOverflowCheck(disable_list=r"torch\.Tensor\.log_") as tool:
        x = torch.zeros(4, device=D).add_(0)
        x.log_()
        x.mul_(2)
        y = torch.zeros(4, device=D)
        y[1:].add_(0)
        y.log_()
        y[:2].mul_(2)
    assert tool.births == 0 and tool.seen == 2
    with torch.inference_mode(), op_tools.OpOverflowCheck() as tool:
        z = torch.zeros(4, device=D)
        z.log_()
        z.zero_()
        z.log_()
    assert tool.births == 2
