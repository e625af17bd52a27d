"""Backward: every row is tied to the forward call and the line that made it; nothing is kept, nothing is changed."""

from __future__ import annotations

import gc
import resource
import sys
import threading
import weakref
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import op_tools
from op_tools.engine import ENGINE
from op_tools.engine.backward import CallGraph, GradientRecorder

D = "dipu"


def line() -> int:
    """The line of the caller."""
    return sys._getframe(1).f_lineno


def in_backward(tool: Any) -> dict[str, tuple[str, str]]:
    """What ran in backward at ATen level: name -> (forward call, line)."""
    return {
        call.name: (place["forward_name"], place["call_site"].split(" ")[0].rsplit(":", 1)[-1])
        for call, place in zip(tool.calls, tool.locations, strict=True)
        if call.in_backward and call.level == "aten"
    }


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * 3 * x.square()


cube = Cube.apply


def test_rows_of_backward_name_the_forward_call_its_number_and_line(probe: Any) -> None:
    x = torch.randn(3, 3, device=D, requires_grad=True)
    with probe(aten=True, ties=True) as tool:
        a = line() + 1
        y = x @ x
        b = line() + 1
        z = torch.tanh(y)
        z.sum().backward()
    found = in_backward(tool)
    assert found["aten.mm.default"] == ("torch.Tensor.matmul", str(a))
    assert found["aten.tanh_backward.default"] == ("torch.tanh", str(b))
    numbers = {call.name: call.id for call in tool.calls if call.level == "api"}
    inside = [call for call in tool.calls if call.name == "aten.tanh_backward.default"]
    assert [call.id for call in inside] == [numbers["torch.tanh"]]


def test_composites_are_tied_as_a_whole(probe: Any) -> None:
    x = torch.randn(2, 3, 4, device=D, requires_grad=True)
    with probe(aten=True, ties=True, backward=True) as tool:
        here = line() + 1
        y = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        y.sum().backward()
    found = in_backward(tool)
    owned = {
        name: owner for name, owner in found.items() if owner[0].endswith("scaled_dot_product_attention")
    }
    assert owned and {owner[1] for owner in owned.values()} == {str(here)}
    # The three inputs are one tensor: its gradient is the sum of what the call gives, at its first place.
    (grads,) = [grads for name, grads, _ in tool.gradients if name.endswith("attention")]
    torch.testing.assert_close(grads[0], x.grad)
    assert grads[1] is None and grads[2] is None


def test_gradients_of_inputs_are_the_calls_own_contribution(probe: Any) -> None:
    x = torch.ones(2, device=D, requires_grad=True)
    w = torch.full((2,), 3.0, device=D, requires_grad=True)
    with probe(backward=True) as tool:
        h = x * 2
        y = h * w
        z = (y + h).sum()  # h has a second user
        z.backward()
    table = {name: (gi, go) for name, gi, go in tool.gradients if name != "torch.Tensor.sum"}
    grads, _ = table["torch.Tensor.add"]
    assert [g.tolist() for g in grads] == [[1, 1], [1, 1]]
    products = [(gi, go) for name, gi, go in tool.gradients if name == "torch.Tensor.mul"]
    (gi, go), (first_gi, first_go) = products
    assert [g.tolist() for g in gi] == [[3, 3], [2, 2]] and go[0].tolist() == [1, 1]
    assert first_gi[0].tolist() == [8, 8] and first_go[0].tolist() == [4, 4]
    assert x.grad.tolist() == [8, 8] and w.grad.tolist() == [2, 2]


def test_several_outputs_and_lists(probe: Any) -> None:
    x = torch.arange(6.0, device=D, requires_grad=True)
    with probe(backward=True) as tool:
        a, b, _ = torch.split(x, 2)
        values, _ = (a * b).sort()
        torch.cat([values, a]).sum().backward()
    table = {name: (gi, go) for name, gi, go in tool.gradients}
    gi, _ = table["torch.cat"]
    assert [g.tolist() for g in gi] == [[1, 1], [1, 1]]
    gi, _ = table["torch.functional.split"] if "torch.functional.split" in table else table["torch.split"]
    assert gi[0].tolist() == x.grad.tolist() == [3, 4, 0, 1, 0, 0]


def test_an_autograd_function_of_the_program_is_tied_to_the_line_that_applied_it(probe: Any) -> None:
    x = torch.ones(2, device=D, requires_grad=True)
    with probe(aten=True, ties=True) as tool:
        a = line() + 1
        y = cube(x)
        y.sum().backward()
    assert x.grad.tolist() == [3, 3]
    mine = [
        p
        for c, p in zip(tool.calls, tool.locations, strict=True)
        if c.in_backward and c.name == "torch.Tensor.square"
    ]
    assert [(p["forward_name"].rsplit(".", 1)[-1], p["call_site"].split(" ")[0]) for p in mine] == [
        ("Cube", f"{__file__}:{a}")
    ]
    assert in_backward(tool)["aten.mul.Tensor"][0].endswith("Cube")
    assert not hasattr(vars(torch.autograd.function._SingleLevelFunction), "apply")
    assert "apply" not in vars(torch.autograd.function._SingleLevelFunction)


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_of_a_checkpoint_is_seen_and_tied(probe: Any, reentrant: bool) -> None:
    x = torch.randn(2, 2, device=D, requires_grad=True)
    lines = []

    def part(v: torch.Tensor) -> torch.Tensor:
        lines.append(line() + 1)
        return torch.tanh(v @ v)

    bare = torch.tanh(x @ x)
    bare.sum().backward()
    expected, x.grad = x.grad, None
    with probe(aten=True, ties=True, backward=True) as tool:
        y = checkpoint(part, x, use_reentrant=reentrant)
        y.sum().backward()
    assert torch.equal(x.grad, expected)
    api = [call for call in tool.calls if call.level == "api" and call.name == "torch.tanh"]
    assert [call.in_backward for call in api] == [False, True]
    owner = in_backward(tool)["aten.tanh_backward.default"]
    assert owner == ("torch.tanh", str(lines[0]))


def test_hooks_of_the_program_are_seen_and_work(probe: Any) -> None:
    x = torch.ones(2, device=D, requires_grad=True)
    order = []
    with probe(aten=True, ties=True, backward=True) as tool:
        y = x * 2
        y.register_hook(lambda grad: order.append("tensor") or grad * 10)
        y.grad_fn.register_hook(lambda gi, go: order.append("node"))
        x.register_post_accumulate_grad_hook(lambda p: order.append("leaf"))
        y.sum().backward()
    assert order == ["tensor", "node", "leaf"] and x.grad.tolist() == [20, 20]
    assert [go[0].tolist() for name, _, go in tool.gradients if name == "torch.Tensor.mul"] == [[10, 10]]


def test_in_place_views_double_backward_and_retained_graphs(probe: Any) -> None:
    def program() -> list[Any]:
        x = torch.arange(1.0, 5.0, device=D, requires_grad=True)
        y = x * 1
        y[1:3].mul_(x[:2])
        y.add_(y[0].detach().clone())
        (g,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), x, retain_graph=True)
        (h2,) = torch.autograd.grad(g.sum(), x)
        return [g.tolist(), h.tolist(), h2.tolist()]

    bare = program()
    with probe(aten=True, ties=True, backward=True) as tool:
        watched = program()
    assert watched == bare and ENGINE.failures.seen == {}
    assert [name for name, *_ in tool.gradients].count("torch.Tensor.pow") >= 1


def test_gradients_asked_for_one_input_at_a_time(probe: Any) -> None:
    a = torch.full((2,), 2.0, device=D, requires_grad=True)
    b = torch.full((2,), 5.0, device=D, requires_grad=True)
    with probe(backward=True) as tool:
        y = torch.nn.functional.bilinear(a[None], b[None], torch.ones(1, 2, 2, device=D)).sum()
        (ga,) = torch.autograd.grad(y, a, retain_graph=True)
        (gb,) = torch.autograd.grad(y, b, retain_graph=True)
        y.backward()
    assert ga.tolist() == [10, 10] and gb.tolist() == [4, 4]
    assert torch.equal(a.grad, ga) and torch.equal(b.grad, gb)
    whole = [gi for name, gi, _ in tool.gradients if name == "torch.nn.functional.bilinear"][-1]
    assert whole[0].tolist() == [[10, 10]] and whole[1].tolist() == [[4, 4]]


def test_nodes_that_another_thread_made_are_not_the_calls_own(probe: Any) -> None:
    """Autograd counts nodes by thread: those of a new thread have the numbers that the first nodes here had."""
    x = torch.ones(4, device=D, requires_grad=True)
    with probe(backward=True) as tool:
        x.cos().cos().cos()
        base = torch.sin(x * 2)
        tied = base.grad_fn.metadata
        made: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: made.append(base[:].mul_(x)))
        thread.start()
        thread.join()
        made[0].sum().backward()
    (products,) = [gi for name, gi, _ in tool.gradients if name == "torch.Tensor.mul_"]
    torch.testing.assert_close(products[1].cpu(), torch.full((4,), 2.0).sin())  # not what sin gives to x
    assert [name for name, *_ in tool.gradients].count("torch.sin") == 1
    assert [origin.name for origin in tied.values()] == ["torch.sin"]


def test_gradients_are_read_behind_prehooks_and_before_hooks_of_the_program(probe: Any) -> None:
    x = torch.ones(2, device=D, requires_grad=True)
    with probe(backward=True) as tool:
        y = x * 2
        y.grad_fn.register_prehook(lambda grads: (grads[0] * 10,))
        y.grad_fn.register_hook(lambda grads, _: (grads[0].mul_(7), grads[1]))
        y.sum().backward()
    (go,) = [go for name, _, go in tool.gradients if name == "torch.Tensor.mul"]
    assert go[0].tolist() == [10, 10] and x.grad.tolist() == [140, 140]
    assert tool.values["torch.Tensor.mul"] == [[20, 20]]


def test_what_the_second_derivative_adds_inside_a_call_is_not_the_calls_own(probe: Any) -> None:
    x = torch.ones(1, 2, device=D, requires_grad=True)
    weight = torch.full((1, 2), 3.0, device=D, requires_grad=True)
    with probe(backward=True) as tool:
        y = torch.nn.functional.linear(x, weight)
        (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        (y.sum() + slope.sum()).backward()
    first, second = [gi for name, gi, _ in tool.gradients if name.endswith("linear")]
    assert first[0].tolist() == [[36, 36]] and first[1] is None  # nobody asked for it
    # y = 6, slope = 2 y weight: linear is given 1 + 2 (3 + 3); the weight also gets 2 y from the slope.
    assert second[0].tolist() == [[39, 39]] and second[1] is None
    assert weight.grad.tolist() == [[25, 25]] and tool.mixed == [("torch.nn.functional.linear", [1])]
    assert not first[0].requires_grad


def test_a_call_that_backward_reaches_in_part_is_told_when_the_run_ends(probe: Any) -> None:
    x = torch.ones(1, 2, device=D, requires_grad=True)
    weight = torch.full((1, 2), 3.0, device=D, requires_grad=True)
    with probe(backward=True) as tool:
        y = torch.nn.functional.linear(x, weight)
        torch.autograd.grad(y.sum(), x, retain_graph=True)
        torch.autograd.grad(y.sum(), weight)
    seen = [
        [None if g is None else g.tolist() for g in gi] for name, gi, _ in tool.gradients if "linear" in name
    ]
    assert seen == [[[[3, 3]], None], [None, [[1, 1]]]]


class Overwriting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad.mul_(2)


def test_a_backward_that_overwrites_its_gradient_is_shown_what_it_was_given() -> None:
    x = torch.ones(2, device=D, requires_grad=True)
    graph = CallGraph([(0, x)])
    y = Overwriting.apply(x)
    seen: list[Any] = []
    recorder = GradientRecorder(
        lambda given, taken, mixed: seen.append((given[0].tolist(), taken[0].tolist()))
    )
    recorder.attach(graph.nodes(graph.exits([y])), lambda function, *values: function(*values))
    (y * 5).sum().backward()
    assert seen == [([10, 10], [5, 5])]


@pytest.mark.parametrize("tool", ["OpCapture", "OpTimeMeasure", "OpLayers", "OpAutoCompare"])
def test_gradients_are_added_up_in_place_as_without_a_tool(tool: str) -> None:
    """Autograd adds in place only where nobody else holds the gradient."""
    model = torch.nn.Linear(3, 3).to(D)

    def run() -> list[int]:
        x = torch.ones(2, 3, device=D, requires_grad=True)
        h = x * 2
        loss = (model(h) + h).sum() + model(h).sum()
        seen: list[int] = []
        h.grad_fn.register_prehook(lambda grads: seen.append(grads[0]._version))
        loss.backward()
        return seen

    bare = run()
    assert bare == [2]  # two additions in place
    with getattr(op_tools, tool)():
        assert run() == bare


@pytest.mark.parametrize("tool", ["OpCapture", "OpTimeMeasure", "OpAutoCompare", "OpOverflowCheck"])
def test_zeros_without_memory_do_not_end_the_process(tool: str) -> None:
    x = torch.ones(3, device=D, requires_grad=True)
    with getattr(op_tools, tool)():
        x.sgn().backward(torch.ones_like(x))
    assert x.grad.tolist() == [0, 0, 0] and ENGINE.failures.seen == {}


def _shape_of_graph(root: Any) -> list[Any]:
    """The graph as nested names: node and what it leads to."""
    return [
        type(root).__name__,
        [_shape_of_graph(node) if node is not None else None for node, _ in root.next_functions],
    ]


def test_the_graph_is_the_same_with_and_without_tools() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2)
    ).to(D)
    x = torch.randn(5, 3, device=D)

    def graph() -> Any:
        y = model(x)
        y = torch.nn.functional.softmax(y, dim=-1) + cube(y)
        y[0].mul_(2)
        return _shape_of_graph(y.sum().grad_fn)

    bare = graph()
    for name in ("OpTimeMeasure", "OpObserve", "OpOverflowCheck", "OpFallback", "OpDtypeCast"):
        with getattr(op_tools, name)():
            assert graph() == bare, name
    assert ENGINE.failures.seen == {}


TOOLS = ["OpTimeMeasure", "OpObserve", "OpOverflowCheck", "OpFallback"]


@pytest.mark.parametrize("name", TOOLS)
def test_tensors_die_as_early_as_without_a_tool(name: str) -> None:
    with getattr(op_tools, name)():
        x = torch.randn(4, 4, device=D, requires_grad=True)
        h = x * 2
        h.add_(1)  # in place: its record must not hold its own graph
        y = h.relu()
        unneeded = weakref.ref(h)
        z = (y @ y).sum()
        result = weakref.ref(y)
        del h
        gc.disable()
        try:
            assert unneeded() is None, "an input that autograd does not save is held"
            z.backward()
            del y, z
            assert result() is None
            v = (x * 3).mul_(2)
            dead = weakref.ref(v)
            del v
            assert dead() is None, "a graph without backward is held"
        finally:
            gc.enable()


def test_two_hundred_steps_leave_nothing_behind(probe: Any) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.ReLU(inplace=True), torch.nn.Linear(8, 1)
    ).to(D)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def steps(count: int) -> None:
        for _ in range(count):
            model(torch.ones(4, 8, device=D)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    def alive() -> tuple[int, int]:
        gc.collect()
        objects = gc.get_objects()
        return sum(issubclass(type(item), torch.Tensor) for item in objects), len(objects)

    tools = [
        op_tools.OpTimeMeasure(max_cache_size=100),
        op_tools.OpObserve(max_cache_size=100),
        op_tools.OpOverflowCheck(),
        op_tools.OpFallback(),
    ]
    for tool in tools:
        tool.start()
    steps(40)
    tensors, objects = alive()
    memory, device = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, torch.dipu.memory_allocated()
    steps(160)
    more_tensors, more_objects = alive()
    assert more_tensors <= tensors and more_objects - objects < 2000
    assert torch.dipu.memory_allocated() == device
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 30_000  # kB
    for tool in tools:
        tool.stop()
