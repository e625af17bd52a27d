"""The engine: the switch, what it shows to the tools, errors, places."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
import torch

import op_tools
from op_tools.device_error import DeviceError
from op_tools.engine import ENGINE, private

D = "dipu"


def line() -> int:
    """The line of the caller."""
    return sys._getframe(1).f_lineno


# -- the switch ------------------------------------------------------------------------------------------


def test_one_mode_of_each_kind_whatever_the_number_of_tools(probe: Any) -> None:
    x = torch.ones(2, device=D)
    tools = [probe() for _ in range(3)] + [probe(aten=True) for _ in range(3)]
    for tool in tools:
        tool.start()
    assert len(private.function_modes()) == 1 and private.dispatch_modes() == []
    x + 1
    assert [tool.names_seen("api") for tool in tools] == [["torch.Tensor.add"]] * 6
    assert [tool.names_seen("aten") for tool in tools[3:]] == [["aten.add.Tensor"]] * 3
    # One call is one record with one number, for all tools.
    assert len({id(tool.calls[0]) for tool in tools}) == 1
    for tool in tools:
        tool.stop()
    assert private.function_modes() == private.dispatch_modes() == []
    x + 1
    assert all(len(tool.names_seen("api")) == 1 for tool in tools)


def test_start_stop_and_end_in_any_order_twice_and_nested(probe: Any) -> None:
    x = torch.ones(2, device=D)
    a, b = probe(), probe(aten=True)
    a.stop()
    a.start().start()
    with b:
        with b:
            x.neg()
        x.tan()  # still inside the outer one
    x.abs()
    b.start()
    a.end()
    x.exp()
    b.stop()
    b.stop()
    a.start()
    x.sin()
    a.end()
    x.cos()
    assert a.names_seen("api") == [f"torch.Tensor.{name}" for name in ("neg", "tan", "abs", "sin")]
    assert b.names_seen("api") == ["torch.Tensor.neg", "torch.Tensor.tan", "torch.Tensor.exp"]


def test_forward_ids_count_applied_calls_for_all_tools(probe: Any) -> None:
    x = torch.ones(2, device=D)
    a, b = probe(list="torch.Tensor.neg"), probe(list="torch.Tensor.neg,torch.Tensor.exp")
    with a, b:
        x.neg()
        x.abs()
        x.exp()
        x.neg()
    ids = [call.id for call in b.calls]
    assert ids == [ids[0], ids[0] + 1, ids[0] + 2]
    assert [call.id for call in a.calls] == [ids[0], ids[2]]


def test_lists_and_exceptions_decide_and_are_read_at_start(probe: Any, monkeypatch: Any) -> None:
    x = torch.ones(2, device=D)
    tool = op_tools.OpObserve()
    monkeypatch.setenv("OP_OBSERVE_LIST", " torch.Tensor.a.* , torch.neg")
    monkeypatch.setenv("OP_OBSERVE_DISABLE_LIST", "torch.Tensor.abs ")
    with tool:
        x + 1
        x.abs()
        torch.neg(x)
        x.neg()
        assert tool.calls == 2


def test_questions_are_never_calls(probe: Any) -> None:
    x = torch.ones(2, device=D, requires_grad=True)
    with probe() as tool:
        (
            x.size(),
            x.dim(),
            x.numel(),
            x.data_ptr(),
            x.shape,
            x.dtype,
            x.device,
            x.grad,
            x.is_leaf,
            repr(x.device),
        )
        x.requires_grad_(True), x.type(), f"{x.dim()}", x.stride(), x.is_contiguous()
        torch.is_tensor(x)
        y = (x * 2).sum()
        y.backward()
        x.grad = None
    assert tool.names_seen() == ["torch.Tensor.mul", "torch.Tensor.sum"]


def test_calls_without_a_device_tensor_are_not_the_tools(probe: Any) -> None:
    with probe() as tool:
        torch.ones(2) + 1
        torch.ones(2, device="meta") * 2
    assert tool.calls == []
    with probe(device="cpu") as tool:
        torch.ones(2) + 1
        torch.ones(2, device=D) * 2
    assert tool.names_seen() == ["torch.Tensor.add"]


def test_keyword_only_tensors_lists_and_dicts_are_seen(probe: Any) -> None:
    x = torch.ones(2, 2, device=D)
    with probe() as tool:
        torch.add(input=x, other=x)
        torch.cat(tensors=[x, x])
        torch.stack((x,))
        torch.nn.functional.linear(input=x, weight=x, bias=None)
    assert tool.names_seen() == ["torch.add", "torch.cat", "torch.stack", "torch.nn.functional.linear"]


def test_a_call_inside_a_call_is_part_of_it(probe: Any) -> None:
    x = torch.ones(2, 2, device=D)
    with probe(aten=True) as tool:
        torch.nn.functional.gumbel_softmax(x)
    assert tool.names_seen("api") == ["torch.nn.functional.gumbel_softmax"]
    inside = [call for call in tool.calls if call.level == "aten"]
    assert "aten._softmax.default" in [call.name for call in inside]
    assert {call.parent.name for call in inside} == {"torch.nn.functional.gumbel_softmax"}
    assert {call.id for call in inside} == {tool.calls[0].id}


# -- errors ----------------------------------------------------------------------------------------------


class Mine(Exception):
    pass


def test_an_error_of_the_program_comes_out_unchanged_and_once(probe: Any) -> None:
    x, y = torch.ones(2, device=D), torch.ones(3, device=D)
    with pytest.raises(RuntimeError) as bare:
        x + y
    for tools in ([probe()], [probe(aten=True, backward=True), op_tools.OpObserve(), op_tools.OpTimeMeasure()],
                  [op_tools.OpOverflowCheck()], [op_tools.OpFallback()], [op_tools.OpDtypeCast()]):  # fmt: skip
        for tool in tools:
            tool.start()
        with pytest.raises(RuntimeError) as watched:
            x + y
        assert type(watched.value) is type(bare.value) and str(watched.value) == str(bare.value)
        assert (x + x).tolist() == [2, 2]
        for tool in tools:
            tool.stop()
        assert ENGINE.failures.seen == {}


def test_an_error_raised_by_the_programs_own_python_is_the_same_object(probe: Any) -> None:
    error = Mine("from a hook")

    def hook(grad: torch.Tensor) -> None:
        raise error

    x = torch.ones(2, device=D, requires_grad=True)
    with probe(aten=True, backward=True, ties=True) as tool:
        y = (x * 2).sum()
        x.register_hook(hook)
        with pytest.raises(Mine) as caught:
            y.backward()
        (x * 3).detach()
    assert caught.value is error
    assert tool.errors == []
    assert tool.names_seen("api")[-1] == "torch.Tensor.detach"


def test_an_error_in_a_tool_is_one_message_and_changes_nothing(probe: Any, capfd: Any) -> None:
    class Broken(probe):  # type: ignore[misc]
        def before(self, call: Any) -> None:
            raise ValueError("the tool is broken")

        after = applies_late = before

    x = torch.ones(2, device=D, requires_grad=True)
    good = probe(backward=True)
    with Broken() as bad, good:
        for _ in range(5):
            y = x * 3
        y.sum().backward()
    assert y.tolist() == [3, 3] and x.grad.tolist() == [3, 3]
    # once for `before`, and `after` has two parameters: a second kind of error
    assert bad.errors.count("ValueError: the tool is broken") == 2  # mul and sum
    said = capfd.readouterr().err
    assert said.count("the tool is broken") == 1 and "torch.Tensor.mul" in said and "goes on" in said
    assert good.names_seen() == ["torch.Tensor.mul"] * 5 + ["torch.Tensor.sum"]
    assert len(good.gradients) == 2


def test_a_tool_that_cannot_even_decide_is_left_out(probe: Any, capfd: Any) -> None:
    class Undecided(probe):  # type: ignore[misc]
        def applies(self, call: Any) -> bool:
            raise KeyError("nothing")

    with Undecided() as tool:
        assert (torch.ones(2, device=D) + 1).tolist() == [2, 2]
    assert tool.calls == [] and tool.errors == ["KeyError: 'nothing'"] * 2  # add and tolist


def test_a_device_error_found_by_a_tool_is_the_programs(probe: Any) -> None:
    broken = RuntimeError("the chip is on fire")

    class Reader(probe):  # type: ignore[misc]
        def after(self, call: Any, result: Any) -> None:
            raise DeviceError(broken)

    with Reader() as tool, pytest.raises(RuntimeError) as caught:
        torch.ones(2, device=D) + 1
    assert caught.value is broken and tool.errors == []


@pytest.mark.parametrize(
    "name", ["OpTimeMeasure", "OpOverflowCheck", "OpFallback", "OpObserve", "OpDtypeCast"]
)
@pytest.mark.parametrize("sync", [False, True])
def test_asynchronous_device_errors_reach_the_program(name: str, sync: bool, quiet_device: None) -> None:
    table, wrong = torch.randn(4, 3, device=D), torch.tensor([9], device=D)
    torch.dipu.synchronize()
    torch.dipu.configure(**{"async": 1, "delay_us": 1000})
    tool = getattr(op_tools, name)(**({"sync": sync} if name == "OpTimeMeasure" else {}))
    with pytest.raises(RuntimeError, match="index"):
        with tool:
            torch.nn.functional.embedding(wrong, table)
            torch.dipu.synchronize()
        torch.dipu.synchronize()
    tool.stop()
    torch.dipu.synchronize()
    assert (table * 0 + 1).sum().item() == 12
    assert ENGINE.failures.seen == {}


# -- places ---------------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.rest = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.first(x) * 2)


def test_a_call_knows_its_line_module_step_rank_and_thread(probe: Any) -> None:
    model = Block().to(D)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe() as tool:
        start = ENGINE.step
        for _ in range(2):
            here = line() + 1
            model(torch.ones(1, 2, device=D)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    places = [
        place
        for call, place in zip(tool.calls, tool.locations, strict=True)
        if call.name == "torch.nn.functional.linear"
    ]
    assert [place["module"] for place in places] == ["Block.first", "Block.rest.1"] * 2
    assert [place["step"] - start for place in places] == [0, 0, 1, 1]
    assert all(place["call_site"].startswith(f"{__file__}:") for place in places)
    mul = next(p for c, p in zip(tool.calls, tool.locations, strict=True) if c.name == "torch.Tensor.mul")
    assert (
        mul["call_site"].endswith("forward: return self.rest(self.first(x) * 2)") and mul["module"] == "Block"
    )
    whole = next(p for c, p in zip(tool.calls, tool.locations, strict=True) if c.name == "torch.Tensor.sum")
    assert whole["call_site"].startswith(f"{__file__}:{here} ") and whole["module"] == ""
    assert {place["rank"] for place in tool.locations} == {0}


@pytest.mark.parametrize(
    "listed", ["torch.never", "torch.nn.functional.conv2d,torch.Tensor.exp", "torch.(mm|bmm)"]
)
def test_a_tool_whose_list_names_other_functions_costs_nothing(probe: Any, listed: str) -> None:
    x = torch.ones(2, device=D)
    with probe(list=listed) as tool:
        assert _functions_of_ours_in(lambda: x + 1) == [] and private.function_modes() == []
    assert tool.calls == []


def test_importing_the_tools_does_not_import_the_compiler(run_python: Any) -> None:
    out = run_python(
        """
        import sys, torch, op_tools
        from op_tools import OpObserve, OpTimeMeasure, OpOverflowCheck, OpFallback, OpDtypeCast, apply_feature
        before = "torch._dynamo" in sys.modules
        with OpTimeMeasure(), OpObserve(), OpOverflowCheck():
            torch.ones(2, device="dipu") + 1
        assert not before and "torch._dynamo" not in sys.modules
        print("clean", [name for name in ("typer", "rich", "sqlite3") if name in sys.modules])
        """
    )
    assert out.splitlines()[-1] == "clean []"


# -- the cost of a call that nobody takes ----------------------------------------------------------------------


def _functions_of_ours_in(work: Any) -> list[str]:
    """The Python functions of op_tools that one run of some work goes through, in order."""
    work()  # decisions are made and kept at the first call
    called: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and f"{os.sep}op_tools{os.sep}engine" in frame.f_code.co_filename:
            called.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return called


def test_a_tool_at_aten_level_that_takes_no_operator_costs_nothing() -> None:
    x = torch.ones(2, device=D)
    with op_tools.OpObserve(list="no.such.operator", level="aten"):
        assert _functions_of_ours_in(lambda: torch.add(x, x)) == []


def test_a_call_without_an_operator_that_a_tool_takes_is_not_recorded() -> None:
    x = torch.ones(2, 2, device=D)
    with op_tools.OpObserve(list="aten.mm.default", level="aten") as tool:
        assert _functions_of_ours_in(lambda: torch.add(x, x)) == []
        assert "Call.__init__" in _functions_of_ours_in(lambda: torch.matmul(x, x))
        assert tool.calls == 2


def test_aten_calls_share_the_number_of_their_api_call_and_of_its_backward(rows: Any) -> None:
    x = torch.randn(3, 3, device=D, requires_grad=True)
    with op_tools.OpObserve(list=".*(mm|multi_dot|linear|tanh).*", level="aten"):
        torch.nn.functional.linear(x, x)
        y = torch.linalg.multi_dot([x, x, x])
        torch.tanh(y).sum().backward()
    found = rows("op_observe_result")
    forward = [row["forward_id"] for row in found if row["phase"] == "forward"]
    # multi_dot is one call with two products in it, the linear before it another one.
    assert len(forward) == 4 and forward[0] != forward[1] == forward[2] != forward[3]
    backward = {row["name"]: row["forward_id"] for row in found if row["phase"] == "backward"}
    assert backward["aten.mm.default"] == forward[1] and backward["aten.tanh_backward.default"] == forward[3]


def test_an_operator_registered_after_the_start_is_seen() -> None:
    names = []

    class Noting(op_tools.OpObserve):
        def before(self, call: Any) -> None:
            names.append(call.name)
            super().before(call)

    with (
        Noting(list="op_tools_test.late.default", level="aten"),
        torch.library._scoped_library("op_tools_test", "FRAGMENT") as library,
    ):
        library.define("late(Tensor x) -> Tensor")
        library.impl("late", lambda x: x.clone(), "CompositeExplicitAutograd")
        x = torch.ones(2, device=D)
        torch.ops.op_tools_test.late(x)
        torch.ops.op_tools_test.late(x)
    assert names == ["op_tools_test.late.default"] * 2
