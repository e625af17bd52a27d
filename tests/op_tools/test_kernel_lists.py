"""The kernels that run are those that run without a tool; the whole operator database is `benchmarks/kernel_lists.py`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from kernel_lists import PROGRAMS, TOOLS, Kernels, first_difference, kernels_of, own_work_marked, runs

pytestmark = pytest.mark.device
D = "dipu"


def _calls() -> dict[str, Callable[[torch.Tensor], Any]]:
    rows = torch.tensor([2, 0, 2], device=D)
    places = torch.tensor([[0, 3, 1, 1], [2, 2, 0, 3]], device=D)
    mask = torch.arange(20, device=D).view(5, 4) % 3 == 0
    return {
        "index": lambda x: x[rows],
        "index_select": lambda x: x.index_select(0, rows),
        "gather": lambda x: x.gather(1, places),
        "scatter": lambda x: x.scatter(1, places, x[:2] * 2),
        "max": lambda x: x.max(dim=1).values,
        "sort": lambda x: x.sort(dim=0).values,
        "topk": lambda x: x.topk(2).values,
        "masked_select": lambda x: x.masked_select(mask),
        "median": lambda x: x.median(dim=1).values,
        "trace": lambda x: x.trace(),
        "prod": lambda x: x.prod(dim=1),
        "linear": lambda x: torch.nn.functional.linear(x, x),
        "sums": lambda x: x.tanh() + x.sin() + x,
    }


def everything(phase: Callable[[str], Any]) -> None:
    """All calls, forward and then backward; each from a leaf of its own."""
    torch.manual_seed(0)
    leaves = [torch.randn(5, 4, device=D, requires_grad=True) for _ in _calls()]
    with phase("forward"):
        outputs = [call(leaf) for call, leaf in zip(_calls().values(), leaves, strict=True)]
    weights = [torch.ones_like(output) for output in outputs]
    with phase("backward"):
        torch.autograd.backward(outputs, weights)


@functools.cache
def bare(program: Any) -> dict[str, Kernels]:
    kernels_of(program)
    return kernels_of(program)


def test_the_list_holds_what_autograd_chose() -> None:
    found = [name.strip() for name in bare(everything)["backward"]]
    for kernel in (
        "_index_put_impl_",
        "index_add_",
        "scatter_add_",
        "scatter_",
        "masked_scatter_",
        "index_fill_",
    ):
        assert f"aten::{kernel}" in found, kernel
    inside = [name.strip() for name in bare(everything)["forward"] if name.startswith(" ")]
    assert "aten::mm" in inside  # of linear


@pytest.mark.parametrize("tool", TOOLS)
def test_the_same_kernels_run_forward_and_backward(tool: str) -> None:
    expected = bare(everything)
    with TOOLS[tool](), own_work_marked():
        seen = kernels_of(everything)
    assert list(first_difference(tool, expected, seen)) == []


@pytest.mark.parametrize("tool", TOOLS)
def test_fused_layers_stay_fused(tool: str) -> None:
    for layer in PROGRAMS:
        (program,) = runs(layer, 1)
        expected = kernels_of(program)
        assert any("_fwd" in name or "native_multi_head" in name for name in expected["forward"])
        with TOOLS[tool](), own_work_marked():
            seen = kernels_of(program)
        assert list(first_difference(tool, expected, seen)) == []
