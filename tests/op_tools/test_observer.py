"""Native observation: what it sees, and that nobody can tell it is there."""

from __future__ import annotations

import collections
import copy
import ctypes
import gc
import json
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from op_tools.engine import ENGINE

D = "dipu"


@pytest.fixture
def observing(probe: Any) -> Any:
    """A probe of kernels, which needs no function mode."""

    class Observing(probe):  # type: ignore[misc]
        uses_api = False

        def __init__(self, **settings: Any) -> None:
            super().__init__(aten=True, **settings)

    return Observing


# -- what it sees ----------------------------------------------------------------------------------------


def test_calls_under_transforms_of_functions(observing: Any) -> None:
    x = torch.ones(3, 4, device=D)
    with observing() as tool:
        torch.func.vmap(torch.sin)(x)
        torch.func.grad(lambda a: a.tanh().sum())(x)
        torch.func.jvp(torch.exp, (x,), (x,))
        torch.func.functionalize(lambda a: a.clone().neg_())(x)
    seen = tool.names_seen()
    for name in ("sin", "tanh", "sum", "tanh_backward", "exp", "neg"):
        assert seen.count(f"aten.{name}.default") == 1, name
    # A tangent is computed inside the call that it belongs to.
    assert "aten.mul.Tensor" not in seen and ENGINE.failures.seen == {}
    # Each with its own arguments, as what it is called with below the transforms.
    shapes = {
        call.name: [tuple(t.shape) for t in call.args if isinstance(t, torch.Tensor)] for call in tool.calls
    }
    assert shapes["aten.tanh_backward.default"] == [(3, 4), (3, 4)] and shapes["aten.exp.default"] == [(3, 4)]


@pytest.mark.parametrize("read", ["capture", "autocompare"])
def test_tangents_without_memory_do_not_end_the_process(read: str, run_python: Any) -> None:
    """Zeros that autograd makes without memory are shown as zeros that have some."""
    tool = {"capture": "OpCapture(level='aten')", "autocompare": "OpAutoCompare(mode='sampled')"}[read]
    code = f"""
import torch, op_tools
from op_tools.engine import ENGINE
x = torch.linspace(-1, 1, 5, device="dipu")
def hessian():
    return torch.func.hessian(lambda v: v.sin() @ v)(x)
right = hessian()
with op_tools.{tool}:
    assert torch.equal(hessian(), right)
assert ENGINE.failures.seen == {{}}, ENGINE.failures.seen
print("done")
"""
    assert "done" in run_python(code)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_calls_of_the_interpreter_of_torchscript(observing: Any) -> None:
    @torch.jit.script
    def work(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            x = torch.add(x, x.sin(), alpha=2)
        return x

    x = torch.ones(2, device=D)
    work(x, 1)
    with observing(list="aten.add.Tensor,aten.sin.default") as tool:
        result = torch.jit.wait(torch.jit.fork(work, x, 2))  # on a thread of torch
    assert tool.names_seen() == ["aten.sin.default", "aten.add.Tensor"] * 2
    assert [len(call.args) for call in tool.calls] == [1, 2, 1, 2] and tool.calls[1].kwargs == {"alpha": 2}
    assert torch.equal(tool.finished[-1][1], result)


def test_an_operator_that_is_defined_anew_is_another_one(observing: Any) -> None:
    x = torch.ones(2, device=D)
    forms: list[tuple[str, Any, tuple[Any, ...]]] = [
        ("f(Tensor x) -> Tensor", lambda x: x.clone(), (x,)),
        ("f(Tensor x, Tensor y, int k=3) -> Tensor", lambda x, y, k=3: x + y, (x, x, 5)),
        ("f(int k, Tensor x) -> (Tensor, Tensor)", lambda k, x: (x.clone(), x + 1), (4, x)),
    ]
    with observing() as tool:
        for schema, function, arguments in forms * 2:
            with torch.library._scoped_library("op_tools_test", "FRAGMENT") as library:
                library.define(schema)
                library.impl("f", function, "CompositeExplicitAutograd")
                torch.ops.op_tools_test.f(*arguments)
    assert [[type(value).__name__ for value in call.args] for call in tool.calls] == [
        ["Tensor"], ["Tensor", "Tensor", "int"], ["int", "Tensor"]
    ] * 2  # fmt: skip
    assert [type(result).__name__ for _, result in tool.finished] == ["Tensor", "Tensor", "tuple"] * 2


def test_a_kernel_that_comes_and_goes(observing: Any) -> None:
    x = torch.ones(2, 2, device=D)
    with observing() as tool:
        torch.matmul(x, x)
        with torch.library._scoped_library("aten", "IMPL") as library:
            library.impl("matmul", torch.mm, "PrivateUse1")
            torch.matmul(x, x)
        torch.matmul(x, x)
    assert tool.names_seen() == ["aten.mm.default", "aten.matmul.default", "aten.mm.default"]


# -- that nobody can tell --------------------------------------------------------------------------------


class Own(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "make",
    [
        lambda: Own([1.0, 2.0]),
        lambda: Own([1, 2], device="cpu"),
        lambda: Own(torch.ones(2).untyped_storage()),
        lambda: Own(torch.ones(2)),
        lambda: torch.ones(2).as_subclass(Own),
        lambda: torch.nn.Parameter(torch.ones(2).as_subclass(Own)),
        lambda: pickle.loads(pickle.dumps(torch.ones(2).as_subclass(Own))),
        lambda: copy.copy(torch.nn.Buffer(torch.ones(2))),
    ],
)
def test_tensors_of_the_programs_own_classes_can_be_made(observing: Any, make: Any) -> None:
    kind = type(make())
    with observing(device="cpu") as tool:
        assert type(make()) is kind
        make() + 1
    assert "aten.add.Tensor" in tool.names_seen()


def test_a_tensor_that_only_torch_has_keeps_no_object_of_ours(observing: Any) -> None:
    owned: list[bool] = []

    class Asks(observing):  # type: ignore[misc]
        def after(self, call: Any, result: Any) -> None:
            super().after(call, result)
            if call.name == "aten.mm.default":
                owned.append(result is call.args[0])
                assert result.grad_fn is not None and result.requires_grad

    x = torch.ones(2, 2, device=D, requires_grad=True)
    with Asks(ties=True) as tool:
        y = torch.mm(x, x)
    shown = tool.finished[0][1]
    assert shown is not y and shown.data_ptr() == y.data_ptr() and shown.grad_fn is y.grad_fn
    assert shown._version == y._version and owned == [False]
    with torch.no_grad():
        y.add_(1)
    assert shown._version == y._version == 1
    with Asks() as tool, torch.no_grad():
        y.add_(1)
    assert tool.calls[0].args[0] is tool.finished[0][1] is y  # Python has this one


def test_within_a_call_a_tensor_is_one_object(observing: Any) -> None:
    x = torch.ones(2, 2, device=D, requires_grad=True)
    with observing() as tool:
        (
            x.sin() + x.cos() + x.exp()
        ).sum().backward()  # torch adds gradients up in place, in tensors of its own
    added = [
        (call, result)
        for call, (_, result) in zip(tool.calls, tool.finished, strict=True)
        if call.name == "aten.add_.Tensor"
    ]
    assert all(call.args[0] is result for call, result in added)


def _names_of_an_execution_trace(folder: Path, work: Any) -> collections.Counter[str]:
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(folder / "trace.json"))
    observer.start()
    work()
    observer.stop()
    observer.unregister_callback()
    return collections.Counter(
        node["name"] for node in json.loads((folder / "trace.json").read_text())["nodes"]
    )


def _names_of_a_profile_of_all_threads(_: Path, work: Any) -> collections.Counter[str]:
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], experimental_config=config
    ) as profile:
        work()
    return collections.Counter({event.key: event.count for event in profile.key_averages()})


@pytest.mark.parametrize("names_of", [_names_of_an_execution_trace, _names_of_a_profile_of_all_threads])
@pytest.mark.parametrize("level", ["api", "aten"])
def test_whoever_records_calls_on_all_threads_does_not_see_the_tools(
    probe: Any, own_place: Path, level: str, names_of: Any
) -> None:
    class Busy(probe):  # type: ignore[misc]
        def before(self, call: Any) -> None:
            torch.ones(2, device=D).erf().sum()

        after = backward = lambda self, call, *_: self.before(call)

    def work() -> None:
        x = torch.ones(4, 4, device=D, requires_grad=True)
        (x.sin() + x.cos()).sum().backward()

    plain = names_of(own_place, work)
    with Busy(aten=level == "aten", backward=level == "api"):
        assert names_of(own_place, work) == plain
    assert plain["aten::sin"] > 0 and plain["aten::erf"] == 0 and ENGINE.failures.seen == {}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_thread_of_torch_goes_on_while_somebody_keeps_the_interpreter(observing: Any) -> None:
    @torch.jit.script
    def work(x: torch.Tensor) -> torch.Tensor:
        return x.exp().sin()

    x = torch.ones(2)
    work(x)
    sleep = ctypes.PyDLL(None).usleep  # keeps the interpreter, as functions of C++ do that say nothing else
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)  # nor is it taken away
    try:
        with observing(device="cpu", list="aten.mm.default"):
            future = torch.jit.fork(work, x)
            sleep(1_500_000)
            done = future.done()
    finally:
        sys.setswitchinterval(interval)
    assert done and torch.equal(torch.jit.wait(future), x.exp().sin())


def test_calls_leave_nothing_behind(observing: Any) -> None:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    class Forgets(observing):  # type: ignore[misc]
        before = after = lambda self, *_: None

    x = torch.ones(4, device=D, requires_grad=True)

    def step() -> None:
        torch.stack([Function.apply(x).exp(), x]).sum().backward()
        x.grad = None

    with Forgets():
        for _ in range(5):
            step()
        gc.collect()
        before, memory = len(gc.get_objects()), torch.dipu.memory_allocated()
        for _ in range(300):
            step()
        gc.collect()
        assert len(gc.get_objects()) - before < 50 and torch.dipu.memory_allocated() == memory


def test_a_tool_that_is_stopped_while_a_thread_is_in_a_call(observing: Any) -> None:
    """Another thread decides anew while this one is between its look and its call."""
    x = torch.ones(2, device=D)
    stopped, seen = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    class Stops(observing):  # type: ignore[misc]
        def before(self, call: Any) -> None:
            super().before(call)
            seen.set()
            stopped.wait()

    def work() -> None:
        try:
            x.exp()
            x.exp()
        except BaseException as error:
            errors.append(error)

    tool = Stops().start()
    thread = threading.Thread(target=work)
    thread.start()
    seen.wait()
    tool.stop()
    with observing(list="aten.exp.default") as other:
        x.exp()
        stopped.set()
        thread.join()
    assert (
        errors == []
        and tool.names_seen() == ["aten.exp.default"]
        and other.names_seen() == ["aten.exp.default"] * 2
    )
