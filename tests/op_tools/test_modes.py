"""The engine beside the program's own modes, transforms and processes: neither disturbs the other."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import op_tools
from op_tools.engine import ENGINE, private

D = "dipu"


class CountingFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class CountingOperators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


# -- the tools are not seen -------------------------------------------------------------------------------


class Busy(op_tools.OpObserve):
    """A tool that calls torch in every hook."""

    uses_aten = aten_everywhere = wants_backward = wants_ties = True  # type: ignore[assignment]
    api_is_context = False  # type: ignore[assignment]

    def wants_aten(self, name: str, func: Any) -> bool:
        return True

    def opened(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def _work(self, call: Any) -> None:
        x = torch.ones(3, device=D)
        assert (x * 2).tolist() == [2, 2, 2] and torch.cat([x, x]).sum().item() == 6

    def before(self, call: Any) -> None:
        self.seen.append((call.level, call.name))
        self._work(call)

    def after(self, call: Any, result: Any) -> None:
        self._work(call)

    def backward(self, call: Any, grad_inputs: Any, grad_outputs: Any) -> None:
        self.seen.append(("grad", call.name))
        self._work(call)


def test_what_a_tool_calls_is_seen_by_no_tool_and_no_mode() -> None:
    functions, operators = CountingFunctions(), CountingOperators()
    x = torch.ones(2, device=D, requires_grad=True)

    def program() -> None:
        x.grad = None
        (x * 3).sum().backward()

    with functions, operators:
        program()
    bare = (list(functions.seen), list(operators.seen))
    functions.seen.clear(), operators.seen.clear()
    tool = Busy()
    with functions, operators, tool:
        program()
    assert (functions.seen, operators.seen) == bare
    assert [item for item in tool.seen if item[0] == "api" and item[1].startswith("torch.")] == [
        ("api", "torch.Tensor.mul"),
        ("api", "torch.Tensor.sum"),
    ]
    assert [item for item in tool.seen if item[0] == "grad"] == [
        ("grad", "torch.Tensor.sum"),
        ("grad", "torch.Tensor.mul"),
    ]
    functions.seen.clear(), operators.seen.clear()
    with tool, functions, operators:
        program()
    assert (functions.seen, operators.seen) == bare
    assert ENGINE.failures.seen == {}


def test_operators_inside_backward_are_not_shown_to_the_programs_function_modes() -> None:
    functions = CountingFunctions()
    x = torch.ones(2, 2, device=D, requires_grad=True)
    with op_tools.OpOverflowCheck(), functions:
        (x @ x).sum().backward()
    assert all(not isinstance(func, torch._ops.OpOverload) for func in functions.seen)


# -- the program's own modes --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [CountingFunctions, CountingOperators])
def test_start_inside_a_mode_of_the_program_and_stop_outside(mode: Any, probe: Any) -> None:
    x = torch.ones(2, device=D)
    tool, theirs = probe(aten=True), mode()
    with theirs:
        tool.start()
        x.neg()
    seen = len(theirs.seen)
    x.abs()
    assert len(theirs.seen) == seen  # it is off
    tool.stop()
    x.exp()
    assert tool.names_seen("api") == ["torch.Tensor.neg", "torch.Tensor.abs"]
    assert tool.names_seen("aten") == ["aten.neg.default", "aten.abs.default"]


@pytest.mark.parametrize("mode", [CountingFunctions, CountingOperators])
def test_stop_inside_a_mode_of_the_program(mode: Any, probe: Any) -> None:
    x = torch.ones(2, device=D)
    tool, theirs = probe(aten=True), mode()
    tool.start()
    with theirs:
        x.neg()
        tool.stop()
        x.abs()
        count = len(theirs.seen)
        with tool:
            x.sin()
        assert len(theirs.seen) > count
    x.exp()
    assert private.function_modes() == private.dispatch_modes() == []
    assert tool.names_seen("api") == ["torch.Tensor.neg", "torch.Tensor.sin"]


def test_a_default_device_works_with_a_tool_started_inside_and_outside(probe: Any) -> None:
    tool = probe()
    with tool, torch.device(D):
        assert torch.zeros(2).device.type == D
    with torch.device(D):
        tool.start()
        assert (torch.zeros(2) + 1).device.type == D
    assert torch.zeros(2).device.type == "cpu"
    tool.stop()
    assert torch.zeros(2).device.type == "cpu"
    assert "torch.Tensor.add" in tool.names_seen()


def test_fake_tensors_are_not_the_tools_business(probe: Any) -> None:
    tool = probe(aten=True)
    with tool, FakeTensorMode() as fake:
        x = torch.ones(2, device=D)
        y = x * 2
        assert y.shape == (2,) and type(y).__name__ == "FakeTensor"
        tool.stop()
        tool.start()
        x.neg()
    assert tool.calls == []
    with tool:
        fake.from_tensor(torch.ones(2, device=D)).exp()
        torch.ones(2, device=D).neg()
    assert tool.names_seen("api")[-1] == "torch.Tensor.neg"
    assert "torch.Tensor.exp" not in tool.names_seen("api")


def test_functorch_transforms_give_the_same(probe: Any) -> None:
    x = torch.arange(6.0, device=D).reshape(3, 2)

    def f(v: torch.Tensor) -> torch.Tensor:
        return (v.sin() * v).sum()

    bare = [
        torch.vmap(f)(x),
        torch.func.grad(f)(x),
        torch.vmap(torch.func.grad(f))(x),
        torch.func.jvp(f, (x,), (x,))[1],
    ]
    names = ["OpTimeMeasure", "OpObserve", "OpOverflowCheck", "OpFallback", "OpDtypeCast"]
    for tool in (probe(aten=True, backward=True, ties=True), *(getattr(op_tools, name)() for name in names)):
        with tool:
            watched = [
                torch.vmap(f)(x),
                torch.func.grad(f)(x),
                torch.vmap(torch.func.grad(f))(x),
                torch.func.jvp(f, (x,), (x,))[1],
            ]
        assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(bare, watched, strict=True)), tool
    assert ENGINE.failures.seen == {}


def test_inference_mode_and_no_grad(probe: Any) -> None:
    weight = torch.ones(2, 2, device=D, requires_grad=True)
    tools = [
        probe(aten=True, backward=True, ties=True),
        op_tools.OpTimeMeasure(),
        op_tools.OpOverflowCheck(),
        op_tools.OpFallback(),
    ]
    for tool in tools:
        tool.start()
    with torch.inference_mode():
        y = weight @ weight
        y.add_(1)
        assert y.is_inference() and y.tolist() == [[3, 3], [3, 3]]
    with torch.no_grad():
        z = weight * 2
        assert not z.requires_grad
    assert (y + 1).tolist() == [[4, 4], [4, 4]]
    for tool in tools:
        tool.stop()
    assert ENGINE.failures.seen == {}


# -- processes ------------------------------------------------------------------------------------------------


def test_a_forked_child_goes_on_alone(probe: Any) -> None:
    x = torch.ones(2)
    with probe(device="cpu") as tool:
        x + 1
        child = os.fork()
        if child == 0:
            ok = False
            try:
                x * 2
                ok = tool.names_seen() == ["torch.Tensor.add", "torch.Tensor.mul"]
                tool.stop()
                ok = ok and private.function_modes() == []
            finally:
                os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        x - 1
    assert tool.names_seen() == ["torch.Tensor.add", "torch.Tensor.sub"]


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), float(index)) * 2


def test_workers_of_a_data_loader(rows: Any) -> None:
    with op_tools.OpObserve(device="cpu,dipu"), op_tools.OpTimeMeasure(device="cpu,dipu"):
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2)
        batches = [batch.to(D) + 1 for batch in loader]
    assert [batch[:, 0].tolist() for batch in batches] == [[1, 3], [5, 7], [9, 11], [13, 15]]
    mine = [row for row in rows("op_observe_result") if row["name"] == "torch.Tensor.add"]
    assert len(mine) == 4
