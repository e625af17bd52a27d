"""torch.compile under the tools: as many graphs as without, and what is compiled is reported as one call."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._dynamo.testing
import torch._dynamo.utils
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import op_tools
from op_tools.engine import ENGINE

D = "dipu"
TOOLS = [
    "OpTimeMeasure",
    "OpObserve",
    "OpOverflowCheck",
    "OpFallback",
    "OpDtypeCast",
    "OpAutoCompare",
    "OpCapture",
]
Compile = Callable[..., Any]
# Before torch 2.13 nothing tells what a compiled call returned, so its backward cannot be tied to it.
HAS_RESULT = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


class Counts:
    """How often the compiler made a graph, broke one, and compiled a frame."""

    def __init__(self) -> None:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        self.backend = torch._dynamo.testing.CompileCounterWithBackend("eager")

    def compile(self, function: Any, **options: Any) -> Any:
        return torch.compile(function, backend=self.backend, **options)

    def all(self) -> tuple[Any, ...]:
        counters = torch._dynamo.utils.counters
        frames = {key: value for key, value in counters["frames"].items()}
        return (
            self.backend.frame_count,
            self.backend.op_count,
            dict(counters["stats"]),
            sum(counters["graph_break"].values()),
            frames,
        )


@contextlib.contextmanager
def on(name: str | None) -> Iterator[Any]:
    if name is None:
        yield None
        return
    with getattr(op_tools, name)() as tool:
        yield tool


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.nn.functional.gelu(self.a(x)).clamp(-1, 1))


def program(counts: Counts, name: str | None, before: bool) -> tuple[Any, ...]:
    def function(x: torch.Tensor, factor: int = 2) -> torch.Tensor:
        return (x.sin() * factor + x).relu()

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    x = torch.linspace(-1, 1, 8, device=D)
    net = Net().to(D)
    made = (
        [
            counts.compile(item, **options)
            for item, options in ((function, {"fullgraph": True}), (broken, {}), (net, {}))
        ]
        if before
        else []
    )
    with on(name):
        if not before:
            made = [
                counts.compile(item, **options)
                for item, options in ((function, {"fullgraph": True}), (broken, {}), (net, {}))
            ]
        results = [made[0](x), made[0](x), made[0](x, 3), made[0](x[:5]), made[0](x[:6]), made[1](x)]
        loss = made[2](x.reshape(2, 4)).square().sum()
        loss.backward()
        results += [loss.detach(), *(parameter.grad for parameter in net.parameters())]
    results.append(made[0](x))
    return tuple(result.cpu() for result in results)


@pytest.mark.parametrize("before", [False, True], ids=["compiled after start", "compiled before start"])
@pytest.mark.parametrize("name", TOOLS)
def test_graphs_breaks_recompiles_and_results_are_those_without_the_tool(name: str, before: bool) -> None:
    counts = Counts()
    bare = program(counts, None, before)
    expected = counts.all()
    assert expected[0] >= 5 and expected[3] == 1
    counts = Counts()
    watched = program(counts, name, before)
    assert counts.all() == expected
    assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))
    assert ENGINE.failures.seen == {}


def test_a_compiled_call_is_one_row(rows: Any, probe: Any) -> None:
    counts = Counts()

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 2 + x).relu()

    compiled, net = counts.compile(function), counts.compile(Net().to(D))
    x = torch.ones(2, 4, device=D)
    with (
        op_tools.OpObserve(),
        op_tools.OpTimeMeasure(),
        op_tools.OpOverflowCheck() as overflow,
        probe(aten=True) as tool,
    ):
        compiled(x)
        compiled(x)
        net(x).sum().backward()
        x.neg()
    names = [row["name"] for row in rows("op_observe_result")]
    function_name, net_name = names[0], names[2]
    assert function_name.startswith("torch.compile.") and function_name.endswith("function")
    assert net_name.startswith("torch.compile.") and "Net" in net_name
    assert names == [function_name, function_name, net_name, "torch.Tensor.sum", "torch.Tensor.neg"]
    times = {row["name"]: row for row in rows("op_time_measure_result")}
    assert float(times[function_name]["forward_elasped"]) > 0
    assert not HAS_RESULT or float(times[net_name]["backward_elasped"]) > 0
    assert times[function_name]["call_site"].startswith(f"{__file__}:")
    assert tool.names_seen("compiled") == [function_name, function_name, net_name]
    # Inside, at ATen level, what runs is seen.
    assert (
        tool.names_seen("aten").count("aten.sin.default") == 2 and "torch.Tensor.sin" not in tool.names_seen()
    )
    assert "aten.neg.default" in tool.names_seen()
    assert overflow.births == 0


def test_inside_a_compiled_call_dispatch_is_as_without_a_tool() -> None:
    torch._dynamo.reset()
    seen: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            seen.append(str(torch._C._dispatch_tls_local_include_set()))
            return graph.forward(*args)

        return torch._dynamo.disable(run)

    compiled = torch.compile(lambda v: v.sin(), backend=backend)
    x = torch.ones(3, device=D)
    compiled(x)
    with op_tools.OpOverflowCheck():
        compiled(x)
        compiled(x)
    assert seen == [seen[0]] * 3 and "Python" not in seen[0]


def test_a_stance_that_does_not_compile_shows_what_runs(probe: Any) -> None:
    counts = Counts()
    compiled = counts.compile(lambda v: v.sin() + 1)
    with probe() as tool, torch.compiler.set_stance("force_eager"):
        compiled(torch.ones(3, device=D))
    assert tool.names_seen() == ["torch.Tensor.sin", "torch.Tensor.add"]


def test_what_a_compiled_call_runs_is_seen_forward_and_backward(probe: Any) -> None:
    torch._dynamo.reset()

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ x)

    compiled = torch.compile(function, backend="aot_eager")
    x = torch.randn(3, 3, device=D, requires_grad=True)
    function(x).sum().backward()
    expected, x.grad = x.grad, None
    with probe(aten=True, ties=True, backward=True) as tool:
        compiled(x).sum().backward()
        torch.tanh(x).sum().backward()
    assert len(tool.gradients) == (4 if HAS_RESULT else 3)  # sum, the compiled call, sum, tanh
    x.grad = None
    with probe(aten=True, ties=True) as tool:
        compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, expected)
    assert tool.names_seen("aten").count("aten.mm.default") == 3
    assert {"aten.tanh.default", "aten.tanh_backward.default"} <= set(tool.names_seen("aten"))


def test_an_error_inside_a_compiled_call_comes_out_and_the_modes_are_back(probe: Any) -> None:
    counts = Counts()

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        if x.shape != y.shape:
            raise KeyError("mine")
        return x + y

    compiled = counts.compile(function)
    x = torch.ones(2, device=D)
    with probe() as tool:
        with pytest.raises(KeyError, match="mine"):
            compiled(x, torch.ones(3, device=D))
        assert len(ENGINE.modes_here()) == 1
        x.neg()
        compiled(x, x)
    assert len(tool.failures) == 1
    assert tool.names_seen()[1] == "torch.Tensor.neg"


def test_a_tool_stopped_and_started_inside_a_compiled_call(probe: Any) -> None:
    counts = Counts()
    tool, other = probe(), probe(aten=True)

    def switch() -> None:
        tool.stop()
        other.start()

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        torch._dynamo.disable(switch)()
        return y * 2

    compiled = counts.compile(function)
    x = torch.ones(2, device=D)
    tool.start()
    assert compiled(x).tolist() == [4, 4]
    x.neg()
    other.stop()
    assert "torch.Tensor.neg" not in tool.names_seen()
    assert other.names_seen()[-2:] == ["torch.Tensor.neg", "aten.neg.default"]


def test_a_compiled_optimizer_step_is_one_graph_and_counts_as_a_step(probe: Any) -> None:
    def run(name: str | None) -> Any:
        counts = Counts()
        parameters = [torch.nn.Parameter(torch.ones(3, device=D)) for _ in range(2)]
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False)
        step = counts.compile(optimizer.step)
        with on(name):
            for _ in range(3):
                for parameter in parameters:
                    parameter.grad = torch.ones(3, device=D)
                step()
        return counts.all()[0], counts.all()[3], [parameter.tolist() for parameter in parameters]

    start = ENGINE.step
    assert run("OpTimeMeasure") == run(None)
    assert run("OpOverflowCheck") == run(None)
    assert ENGINE.step - start == 6


def test_a_compiled_part_inside_a_checkpoint_is_the_same_in_its_recomputation() -> None:
    def run(name: str | None) -> Any:
        counts = Counts()
        part = counts.compile(lambda v: torch.tanh(v @ v) * 2)
        x = torch.full((3, 3), 0.1, device=D, requires_grad=True)
        with on(name):
            checkpoint(part, x, use_reentrant=False).sum().backward()
        return counts.all(), x.grad.tolist()

    assert run("OpTimeMeasure") == run("OpOverflowCheck") == run(None)


def test_an_autograd_function_inside_a_compiled_call() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    def run(name: str | None) -> Any:
        counts = Counts()
        x = torch.ones(3, device=D, requires_grad=True)
        with on(name):
            counts.compile(lambda v: Twice.apply(v).sin(), fullgraph=True)(x).sum().backward()
        return counts.all(), x.grad.tolist()

    assert run("OpTimeMeasure") == run("OpOverflowCheck") == run(None)


def test_collectives_inside_a_compiled_call_stay_in_the_graph() -> None:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:

        def function(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            dist.all_reduce(y)
            return y + 1

        def run(name: str | None) -> Any:
            counts = Counts()
            x = torch.ones(3)
            with getattr(op_tools, name)(device="cpu") if name else contextlib.nullcontext():
                compiled = counts.compile(function)
                return compiled(x).tolist(), compiled(x).tolist(), counts.all()[:2], counts.all()[3]

        original = dist.all_reduce
        assert run("OpTimeMeasure") == run("OpOverflowCheck") == run(None)
        assert dist.all_reduce is original
    finally:
        dist.destroy_process_group()


def test_compiled_calls_in_threads() -> None:
    counts = Counts()
    compiled = counts.compile(lambda v: v.sin() + 1, fullgraph=True)
    x = torch.ones(4, device=D)
    compiled(x)
    frames = counts.backend.frame_count
    results: list[Any] = []
    with op_tools.OpTimeMeasure() as tool:
        threads = [threading.Thread(target=lambda: results.append(compiled(x))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(tool._entries) == 4
    assert counts.backend.frame_count == frames and all(torch.equal(y, compiled(x)) for y in results)
    assert len(results) == 4


def test_a_thread_that_outlives_the_tools_leaves_no_tool_behind() -> None:
    """Libraries start such threads whenever they like: tqdm's never ends."""
    originals = dist.all_reduce, threading.Thread.start, torch.autograd.backward
    ended = threading.Event()
    with op_tools.OpObserve(device="cpu"):
        thread = threading.Thread(target=ended.wait)
        thread.start()
        assert dist.all_reduce is not originals[0]
    try:
        assert (dist.all_reduce, threading.Thread.start, torch.autograd.backward) == originals
        before = ENGINE.step
        torch.optim.SGD([torch.zeros(1, requires_grad=True)]).step()
        assert ENGINE.step == before
    finally:
        ended.set()
        thread.join()


def test_the_compiler_is_prepared_when_the_program_imports_it_after_start(run_python: Any) -> None:
    out = run_python(
        """
        import sys, torch, op_tools
        from op_tools.engine import ENGINE
        tool = op_tools.OpTimeMeasure(); tool.start()
        assert "torch._dynamo" not in sys.modules
        graphs = []
        def backend(graph, inputs):
            graphs.append(graph); return graph.forward
        f = torch.compile(lambda x: x.sin() + x, backend=backend, fullgraph=True)
        x = torch.ones(3, device="dipu")
        f(x); f(x)
        assert len(graphs) == 1 and len(tool._entries) == 2, (graphs, tool._entries)
        tool.stop()
        f(x)
        assert len(graphs) == 1 and not ENGINE.modes_here()
        print("fine")
        """
    )
    assert out.splitlines()[-1] == "fine"
