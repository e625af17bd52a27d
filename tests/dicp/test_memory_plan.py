"""Temporaries share the arena where they are not needed at the same time, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import sympy
import torch
from dicp_loop_backend import use_loops
from torch import Tensor
from torch.nn import functional as F

from dicp.errors import InvalidGraphError
from dicp.loops.index import Size
from dicp.loops.ir import BufferView, LoopBuffer, LoopProgram, MatrixProduct
from dicp.loops.memory import ALIGNMENT, MemoryPlan, Place, holds, lifetimes, plan_memory, verify_memory

pytestmark = pytest.mark.unit

N = sympy.Symbol("n", integer=True)


def products(*rows: Size) -> LoopProgram:
    """A chain: each product reads what the one before it gave; the temporaries have so many rows of 16 floats."""
    buffers = {
        name: LoopBuffer(name, kind, torch.float32, (1, count, 16), (count * 16, 16, 1), count * 16)
        for name, kind, count in (
            ("input", "input", 4),
            ("weight", "input", 16),
            *((f"t{number}", "temporary", count) for number, count in enumerate(rows)),
            ("output", "output", 4),
        )
    }
    views = {n: BufferView(n, b.dtype, b.sizes, b.strides) for n, b in buffers.items()}
    chain = ["input", *(name for name in buffers if name.startswith("t")), "output"]
    steps = tuple(MatrixProduct(views[a], views["weight"], views[b]) for a, b in pairwise(chain))
    return LoopProgram(buffers, (), steps, (views["output"],), {})


def test_a_buffer_lies_where_one_lay_that_is_done() -> None:
    program = products(4, 4, 4, 4)
    plan = plan_memory(program)
    verify_memory(program, plan)
    assert plan.parts == (2 * 4 * 64,)
    assert plan.places["t0"] == plan.places["t2"] != plan.places["t1"] == plan.places["t3"]


def test_small_buffers_lie_beside_each_other_where_a_large_one_was() -> None:
    program = products(8, 1, 4, 4)
    plan = plan_memory(program)
    verify_memory(program, plan)
    assert plan.parts == ((8 + 1) * 64,)
    assert {plan.places["t2"].offset, plan.places["t3"].offset} == {0, 4 * 64}


def test_buffers_of_symbolic_sizes_share_parts_that_surely_hold_them() -> None:
    program = products(N, 2 * N, N, 3, 2 * N)
    plan = plan_memory(program)
    verify_memory(program, plan)
    assert plan.parts == (3 * 64, 64 * N, 128 * N)
    assert plan.places["t4"].part == plan.places["t1"].part
    assert plan.bytes_for({"n": 5}) == (192 + 320 + 640, (0, 192, 512))
    assert plan.bytes_for({"n": 0}) == (192, (0, 192, 192))


def test_a_symbolic_part_grows() -> None:
    program = products(N, 3, N + 2)
    plan = plan_memory(program)
    verify_memory(program, plan)
    assert plan.parts == (192, 64 * N + 128)


@pytest.mark.parametrize(
    ("size", "other", "expected"),
    [(4, 4, True), (3, 4, False), (2 * N, N, True), (2 * N, 1, False), (N + 1, 1, True), (N * N, N, False)],
)
def test_what_surely_holds(size: Size, other: Size, expected: bool) -> None:
    assert holds(size, other) is expected


@pytest.mark.parametrize(
    ("places", "parts", "message"),
    [
        ({"t0": Place(0, 0)}, (4096,), "t1 has no place"),
        ({"t0": Place(0, 0), "t1": Place(0, 192)}, (4096,), "t0 and t1 share memory"),
        ({"t0": Place(0, 0), "t1": Place(0, 260)}, (4096,), "no multiple of 64"),
        ({"t0": Place(0, 0), "t1": Place(0, 256)}, (511,), "ends at byte 512"),
    ],
)
def test_a_wrong_plan_is_refused(places: dict[str, Place], parts: tuple[Size, ...], message: str) -> None:
    program = products(4, 4)
    with pytest.raises(InvalidGraphError, match=message):
        verify_memory(program, MemoryPlan(parts, places))
    verify_memory(program, MemoryPlan((512,), {"t0": Place(0, 0), "t1": Place(0, 256)}))


def test_layers_need_the_memory_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, compiled = use_loops(monkeypatch)

    def layers(x: Tensor, w: Tensor, count: int) -> Tensor:
        for _ in range(count):
            x = F.gelu(x @ w).softmax(-1) + x
        return x.sum(0)

    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(24, 32, generator=generator), torch.randn(32, 32, generator=generator)
    for count in (2, 8):
        torch.testing.assert_close(compiled(layers)(x, w, count), layers(x, w, count))
    few, many = (plan_memory(program).parts[0] for program in backend.programs)
    assert few == many <= 4 * 24 * 32 * 4 + ALIGNMENT


def test_results_show_a_plan_that_shares_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    from dicp.loops.evaluate_program import evaluate_program

    backend, compiled = use_loops(monkeypatch)
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))

    def function(x: Tensor) -> Tensor:
        first = (x @ x).relu()
        return (first @ x) @ first

    compiled(function)(x)
    plan = plan_memory(backend.program)
    torch.testing.assert_close(evaluate_program(backend.program, [x], plan)[0], function(x))
    assert len(plan.places) >= 2
    wrong = replace(plan, places=dict.fromkeys(plan.places, Place(0, 0)))
    assert not torch.allclose(evaluate_program(backend.program, [x], wrong)[0], function(x))
    assert max(alive.last for alive in lifetimes(backend.program).values()) == len(backend.program.steps) - 1
