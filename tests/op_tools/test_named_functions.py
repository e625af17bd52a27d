"""Functions that a list spells out: seen however the program calls them, and the same functions as before for everybody else."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import re
import sys
import threading
import types
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import mm as imported

from op_tools.engine import ENGINE, named, native, private
from op_tools.names import torch_functions

D = "dipu"
LISTED = "torch.mm,torch.Tensor.exp,torch.Tensor.add,torch.Tensor.norm,torch.nn.functional.relu,torch.arange"


def test_it_is_seen_by_whatever_the_program_calls_it(probe: Any) -> None:
    x = torch.ones(2, 2, device=D)
    bound, partial, table = x.exp, functools.partial(torch.mm, x), {"relu": F.relu, "norm": torch.Tensor.norm}

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.activation = F.relu

        def forward(self, value: torch.Tensor, *, product: Any = torch.mm) -> torch.Tensor:
            return self.activation(product(value, value))

    layer = Layer()
    module = types.ModuleType("of_the_program")
    module.mm = torch.mm  # type: ignore[attr-defined]
    with probe(list=LISTED) as tool:
        bound(), partial(x), table["relu"](x), table["norm"](x), layer(x), imported(x, x), module.mm(x, x)
        x + 1, 1 + x, x.add(1), torch.Tensor.add(x, 1)
        torch.add(x, x), torch.sum(x), x.sin()
        exec("from torch import mm\nmm(x, x)", {"x": x})
    assert tool.names_seen() == [
        "torch.Tensor.exp", "torch.mm", "torch.nn.functional.relu", "torch.Tensor.norm", "torch.mm",
        "torch.nn.functional.relu", "torch.mm", "torch.mm", *["torch.Tensor.add"] * 4, "torch.mm",
    ]  # fmt: skip
    bound(), partial(x), layer(x), x + 1
    assert len(tool.calls) == 13


def test_what_modules_of_torch_call_is_seen(probe: Any) -> None:
    x = torch.ones(2, 2, device=D)
    with probe(list="torch.nn.functional.linear,torch.lstm,torch.Tensor.add") as tool:
        torch.nn.Linear(2, 2).to(D)(x)
        torch.nn.LSTM(2, 2).to(D)(x)
        x += 1
    assert tool.names_seen() == ["torch.nn.functional.linear", "torch.lstm"]


def test_it_stays_the_function_that_it_was(probe: Any) -> None:
    functions = [torch.mm, torch.Tensor.exp, torch.Tensor.norm, F.relu, torch.arange]
    before = [(repr(f), hash(f), f.__doc__, f.__name__) for f in functions]
    signatures = [inspect.signature(f) for f in (F.relu, torch.Tensor.norm)]
    known = dict.fromkeys(functions, "known")
    with probe(list=LISTED):
        assert [(repr(f), hash(f), f.__doc__, f.__name__) for f in functions] == before
        assert functions == [torch.mm, torch.Tensor.exp, torch.Tensor.norm, F.relu, torch.arange]
        assert all(
            a is b for a, b in zip(functions, [torch.mm, torch.Tensor.exp, torch.Tensor.norm], strict=False)
        )
        assert [inspect.signature(f) for f in (F.relu, torch.Tensor.norm)] == signatures
        assert inspect.getfullargspec(F.relu).args == ["input", "inplace"]
        assert "has_torch_function" in inspect.getsource(F.relu)
        assert [known.get(f) for f in functions] == ["known"] * 5
        made = dict.fromkeys(functions, "made")
        for function in (torch.mm, F.relu, torch.arange):
            assert pickle.loads(pickle.dumps(function)) is function is copy.deepcopy(function)
        late = types.ModuleType("late")
        exec("from torch import mm\nfrom torch.nn.functional import relu\nhandled = {mm: 1}", vars(late))
    assert [made.get(f) for f in functions] == ["made"] * 5
    assert late.mm is torch.mm and late.relu is F.relu and late.handled[torch.mm] == 1
    assert [(repr(f), hash(f), f.__doc__, f.__name__) for f in functions] == before
    assert "__signature__" not in vars(F.relu) and F.relu.__code__.co_varnames[:2] == ("input", "inplace")


def test_who_tells_functions_apart_finds_those_of_torch(probe: Any) -> None:
    x = torch.ones(2, 2, device=D)
    with probe(list=LISTED) as tool:

        class Own(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
                if func is torch.mm or func == torch.Tensor.exp or func in {F.relu}:
                    return "mine"
                return super().__torch_function__(func, kinds, args, kwargs or {})

        own = x.as_subclass(Own)
        assert torch.mm(own, own) == own.exp() == F.relu(own) == "mine"
        with torch.device(D):
            assert torch.arange(3).device.type == D
    with torch.device(D):
        assert torch.arange(3).device.type == D
    assert tool.names_seen()[:3] == ["torch.mm", "torch.Tensor.exp", "torch.nn.functional.relu"]


def _scripted(x: torch.Tensor) -> torch.Tensor:
    return F.relu(torch.mm(x, x)).norm()


def _scripted_anew() -> Any:
    """The same, as a function that has not been compiled yet."""
    return types.FunctionType(_scripted.__code__, globals(), "_scripted")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_programs_that_read_functions_read_the_same(probe: Any) -> None:
    x = torch.full((2, 2), 0.5, device=D)

    def graphs() -> list[str]:
        graphs = (
            torch.fx.symbolic_trace(_scripted).graph,
            torch.jit.script(_scripted_anew()).graph,
            torch.jit.trace(_scripted, x).graph,
        )
        return [re.sub(r" # .*", "", str(graph)) for graph in graphs]  # without lines of source

    plain = graphs()
    with probe(list=LISTED):
        assert graphs() == plain
        assert torch.jit.script(_scripted_anew())(x).item() == pytest.approx(1.0)


def test_a_compiled_callable_makes_the_same_graph_and_is_not_looked_into(probe: Any) -> None:
    x = torch.full((2, 2), 0.5, device=D)
    graphs: list[str] = []

    def keep(module: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(module.code)
        return module

    def run() -> Any:
        torch._dynamo.reset()
        return torch.compile(_scripted, backend=keep, fullgraph=True)(x)

    plain = run()
    with probe(list=LISTED) as tool:
        assert torch.equal(run(), plain)
        assert tool.calls == []
        _scripted(x)
    assert graphs[0] == graphs[1] and tool.names_seen() == [
        "torch.mm", "torch.nn.functional.relu", "torch.Tensor.norm"
    ]  # fmt: skip


def test_what_a_mode_of_the_program_makes_of_a_call_is_seen(probe: Any) -> None:
    class Elsewhere(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.mm:
                args = (args[0].to(D), args[1].to(D))
            return func(*args, **(kwargs or {}))

    x = torch.ones(2, 2)
    with probe(list=LISTED) as tool, Elsewhere() as mode:
        assert torch.mm(x, x).device.type == D
        assert private.function_modes() == [mode]
    assert tool.names_seen() == ["torch.mm"] and tool.calls[0].device.type == D


def test_on_threads_that_ran_before(probe: Any) -> None:
    x = torch.ones(2, 2, device=D)
    go_on, done = threading.Event(), threading.Event()

    def work() -> None:
        go_on.wait()
        torch.mm(x, x)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    with probe(list=LISTED) as tool:
        go_on.set()
        done.wait()
        thread.join()
    assert tool.names_seen() == ["torch.mm"]


def test_of_two_tools_each_gets_its_own(probe: Any) -> None:
    x = torch.ones(2, 2, device=D)
    first, second = probe(list="torch.mm"), probe(list="torch.mm,torch.Tensor.exp")
    with first:
        torch.mm(x, x).exp()
        second.start()
        torch.mm(x, x).exp()
    torch.mm(x, x).exp()
    second.stop()
    torch.mm(x, x).exp()
    assert first.names_seen() == ["torch.mm"] * 2
    assert second.names_seen() == ["torch.mm", "torch.Tensor.exp"] * 2


def test_an_error_comes_out_as_it_is(probe: Any) -> None:
    x = torch.ones(2, 2, device=D)
    calls: list[Any] = [
        lambda: torch.mm(x), lambda: torch.mm(x, x, nothing=1), lambda: x.exp(1), lambda: F.relu(), lambda: x.add("a"),
    ]  # fmt: skip

    def message(call: Any) -> str:
        with pytest.raises((TypeError, RuntimeError)) as caught:
            call()
        return f"{caught.type.__name__}: {caught.value}"

    plain = [message(call) for call in calls]
    with probe(list=LISTED):
        assert [message(call) for call in calls] == plain
        assert private.function_modes() == []


def test_every_function_can_be_led_and_put_back() -> None:
    functions = {name: function for name, function in torch_functions().items() if "__" not in name}
    x = torch.ones(2, 2, device=D)
    python = {
        name: function for name, function in functions.items() if isinstance(function, types.FunctionType)
    }
    codes = {name: function.__code__ for name, function in python.items()}
    few = [name for name in functions if name not in python][:: max(1, len(functions) // 400)]
    ENGINE.named.sync([*python, *few])
    try:
        changed = [name for name, function in python.items() if function.__code__ is codes[name]]
        assert changed == []
        for name, function in python.items():
            assert function.__code__.co_freevars == codes[name].co_freevars, name
            assert function.__code__.co_firstlineno == codes[name].co_firstlineno
        assert x.exp().tolist() == torch.exp(x).tolist()
    finally:
        ENGINE.named.sync(())
    assert {name: function.__code__ for name, function in python.items()} == codes


def test_what_fails_on_the_way_leaves_nothing_behind(probe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(2, 2, device=D)
    code = F.relu.__code__
    lead = named._PythonFunction.lead

    def fail(self: Any) -> None:
        lead(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(named._PythonFunction, "lead", fail)
    tool = probe(list=LISTED)
    with pytest.raises(KeyboardInterrupt), tool:
        pass
    assert F.relu.__code__ is code and ENGINE.tools == () and not ENGINE.named.is_on
    torch.mm(x, x)
    assert tool.calls == []


def test_no_more_methods_are_led_than_there_are_places() -> None:
    methods = [
        value for value in vars(torch._C.TensorBase).values() if type(value).__name__ == "method_descriptor"
    ]
    assert native.can_lead(methods[:100]) and not native.can_lead(methods * 2)
    assert not native.can_lead([torch.Tensor.__getitem__]) and not native.can_lead([len, sys.getsizeof])
