"""A library written by hand runs as generated ones do: arena, symbolic sizes, operators of ATen, products, views, errors."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from dicp.vendor.HostGraph import compiler, services
from dicp.vendor.HostGraph.program import (
    Allocation,
    AtenCall,
    CallResult,
    HostProgram,
    SizeArgument,
    SizeOutput,
    TensorArgument,
    TensorInput,
    ViewOutput,
    WholeOutput,
)

pytestmark = pytest.mark.unit
aten = torch.ops.aten
FLOAT = torch.float32


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DICP_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "dicp"))


def library(plan: str, run: str, segments: str = "", kernels: str = "") -> Path:
    source = f"""{services.SERVICES_TEXT}
{kernels}
void dicp_plan(const i64* sizes, i64* dims) {{ {plan} }}
void dicp_segment(i64 segment, char** values, const i64* sizes, const Services* services, void* frame) {{
    switch (segment) {{ {segments} }}
}}
void dicp_run(char** values, const i64* sizes, const Services* services, void* frame) {{ {run} }}
"""
    return compiler.build(source).path


PARALLEL = """
struct Doubling { const float* x; float* out; };
static void doubling(void* context, i64 begin, i64 end) {
    const Doubling& a = *(const Doubling*)context;
    for (i64 i = begin; i < end; ++i) a.out[i] = 2 * a.x[i];
}
"""


def test_a_graph_with_a_symbolic_size() -> None:
    """values: 0 arena, 1 x[n, 4], 2 the constant w[4, 3], 3 2x in the arena, 4 out[n, 3], 5 relu(out)."""
    path = library(
        plan="const i64 n = sizes[0]; dims[0] = n * 16; dims[1] = n; dims[2] = 3; dims[3] = 3; dims[4] = 1;"
        " dims[5] = 3; dims[6] = n - 1; dims[7] = 1; dims[8] = 3; dims[9] = 3; dims[10] = 7 * n;",
        run="values[3] = values[0]; DICP_SEGMENT(0) DICP_CALL(0, 0, sizes[0], 3, 3, 1, sizes[0], 3, 3, 1)",
        segments="case 0: { const i64 n = sizes[0]; Doubling a{(const float*)values[1], (float*)values[3]};"
        " services->parallel(frame, doubling, &a, 4 * n, 1000);"
        " DICP_MATMUL(1, n, 3, 4, values[3], 0, 4, 1, values[2], 0, 3, 1, values[4], 0, 3, nullptr, 0, -1) return; }",
        kernels=PARALLEL,
    )
    w = torch.randn(4, 3)
    program = HostProgram(
        arguments=2,
        values=6,
        inputs=(TensorInput(0, FLOAT, (None, 4), (4, 1)),),
        sizes=(1,),
        constants=(w,),
        allocations=(Allocation(4, 2, FLOAT),),
        calls=(AtenCall(aten.relu.default, (TensorArgument(4, 2, FLOAT),), (CallResult(5, 2, FLOAT),)),),
        outputs=(WholeOutput(4), WholeOutput(5), ViewOutput(5, 2, FLOAT), SizeOutput(), None),
    )
    graph = program.load(path)
    for n in (5, 2, 3000):
        x = torch.randn(n, 4)
        given = [x, n]
        out, relu, view, size, nothing = graph(given)
        torch.testing.assert_close(out, 2 * x @ w)
        assert torch.equal(relu, out.relu()) and torch.equal(view, relu.t()[:, 1:]) and given == []
        assert view.data_ptr() == relu.data_ptr() + 12 and size == 7 * n and nothing is None


def _one_call(
    operator: torch._ops.OpOverload,
    arguments: tuple[object, ...],
    dims: str,
    inputs: tuple[torch.Tensor, ...],
    *,
    sizes: int = 0,
) -> Any:
    """A graph of one operator, whose first result has two dimensions."""
    first = 1 + len(inputs)
    path = library(plan="dims[0] = 0;", run=f"DICP_CALL(0, {dims})")
    call = AtenCall(operator, arguments, (CallResult(first, 2, FLOAT),))
    program = HostProgram(
        arguments=len(inputs) + sizes,
        values=first + 1,
        inputs=tuple(TensorInput.like(i, x) for i, x in enumerate(inputs)),
        sizes=tuple(range(len(inputs), len(inputs) + sizes)),
        calls=(call,),
        outputs=(WholeOutput(first),),
    )
    return program.load(path)


X = "0, 2, 3, 3, 1"  # the dims of an argument [2, 3]


def test_lists_numbers_and_results_in_other_formats() -> None:
    x, argument = torch.randn(2, 3), TensorArgument(1, 2, FLOAT)
    (joined,) = _one_call(aten.cat.default, ((argument, argument), 1), f"{X}, {X}, 2, 6, 1, 2", (x,))(x)
    assert torch.equal(joined, torch.cat([x, x], 1)) and joined.stride() == (1, 2)
    (added,) = _one_call(aten.add.Tensor, (argument, 2.5, 2), f"{X}, 2, 3, 3, 1", (x,))(x)
    assert torch.equal(added, x + 5)
    (viewed,) = _one_call(
        aten.view.default, (argument, [SizeArgument(), 2]), f"{X}, sizes[0], sizes[0], 2, 2, 1", (x,), sizes=1
    )(x, 3)
    assert torch.equal(viewed, x.view(3, 2)) and viewed.data_ptr() != x.data_ptr()


def test_what_the_graph_was_not_compiled_for_is_refused() -> None:
    x = torch.randn(2, 3)
    graph = _one_call(aten.neg.default, (TensorArgument(1, 2, FLOAT),), f"{X}, 2, 3, 3, 1", (x,))
    assert torch.equal(graph(x)[0], -x)
    assert torch.equal(graph(x.t().contiguous().t())[0], -x)  # the strides are made right
    with pytest.raises(RuntimeError, match="compiled for Float"):
        graph(x.double())
    with pytest.raises(RuntimeError, match=r"\[2, 4\].*compiled for Float\[2, 3\]"):
        graph(torch.zeros(2, 4))
    with pytest.raises(RuntimeError, match="has 1 inputs; 2 were given"):
        graph(x, x)


def test_errors_end_the_run_and_the_next_one_is_right() -> None:
    path = library(
        plan="dims[0] = 0; dims[1] = 1;",
        run="DICP_SEGMENT(0)",
        segments='case 0: if (*(float*)values[1] < 0) services->fail(frame, "index -1 is out of bounds");'
        " *(float*)values[2] = 1;",
    )
    slot = TensorInput(0, FLOAT, (1,), (1,))
    graph = HostProgram(
        1, 3, (slot,), allocations=(Allocation(2, 0, FLOAT),), outputs=(WholeOutput(2),)
    ).load(path)
    with pytest.raises(IndexError, match="index -1 is out of bounds"):
        graph(torch.tensor([-1.0]))
    assert graph(torch.tensor([1.0]))[0].item() == 1
    argument = TensorArgument(1, 2, FLOAT)
    failing = _one_call(aten.mm.default, (argument, argument), f"{X}, {X}, 2, 2, 2, 1", (torch.ones(2, 3),))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        failing(torch.ones(2, 3))


def test_the_text_and_the_header_declare_the_same() -> None:
    header = Path(__file__).parents[2] / "csrc/dicp/services.h"
    check = f"""
#include <cstddef>
namespace generated {{
{services.SERVICES_TEXT.replace('extern "C"', "")}
}}
#include "{header}"
"""
    for name, fields in (("Matmul", services.MATMUL_FIELDS), ("Services", services.SERVICES_FIELDS)):
        check += f"static_assert(sizeof(generated::{name}) == sizeof(dicp::{name}));\n"
        for field in fields:
            member = field if isinstance(field, str) else field[1]
            check += (
                f"static_assert(offsetof(generated::{name}, {member}) == offsetof(dicp::{name}, {member}));\n"
            )
    for name in ("Float32", "Float64", "BFloat16", "Float16"):
        dtype = getattr(torch, name.lower())
        check += f"static_assert(dicp::kMatmul{name} == {services.MATMUL_DTYPES[dtype]});\n"
    result = subprocess.run(
        ["g++", "-std=c++17", "-fsyntax-only", "-x", "c++", "-"],
        input=check,
        text=True,
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
