"""Compares what a compiled graph gives with eager PyTorch, output by output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from dicp.backend import Runner
from dicp.errors import LOG

__all__ = ["OutputDifference", "compared", "differences", "eager_runner"]

# rtol and atol of whole graphs, in which errors of many operators add up.
_TOLERANCES = {torch.float32: (1e-3, 1e-4), torch.float16: (1e-2, 5e-3), torch.bfloat16: (3e-2, 3e-2)}


@dataclass(frozen=True)
class OutputDifference:
    """How an output differs from that of eager PyTorch."""

    output: str
    text: str

    def __str__(self) -> str:
        return f"output {self.output}: {self.text}"


def eager_runner(graph: GraphModule) -> Runner:
    """Runs the operators of ATen one after the other."""

    def run(*inputs: Any) -> Sequence[Any]:
        results: Sequence[Any] = graph(*inputs)
        return results

    return run


def compared(graph: GraphModule, runner: Runner, backend: str) -> Runner:
    """The runner, which also runs the graph eagerly and says what differs through the logger `dicp`."""
    eager = eager_runner(graph)
    names = _names(graph)

    def run(*inputs: Any) -> Sequence[Any]:
        expected = eager(*(value.clone() if isinstance(value, torch.Tensor) else value for value in inputs))
        results = runner(*inputs)
        found = differences(names, results, expected)
        for difference in found:
            LOG.warning("%s: precision check: %s", backend, difference)
        if not found:
            LOG.info("%s: precision check: all %d outputs agree with eager PyTorch", backend, len(names))
        return results

    return run


def differences(
    names: Sequence[str], results: Sequence[Any], expected: Sequence[Any]
) -> list[OutputDifference]:
    """The outputs that differ, and by how much."""
    if len(results) != len(expected):
        return [OutputDifference("count", f"{len(results)} outputs instead of {len(expected)}")]
    pairs = zip(names, results, expected, strict=True)
    return [
        OutputDifference(name, text)
        for name, result, wanted in pairs
        if (text := _difference(result, wanted))
    ]


def _names(graph: GraphModule) -> list[str]:
    outputs: Any = graph.graph.output_node().args[0]
    return [
        f"{index} ({value.target})" if isinstance(value, Node) else str(index)
        for index, value in enumerate(outputs)
    ]


def _difference(result: torch.Tensor, expected: torch.Tensor) -> str:
    if result.dtype != expected.dtype:
        return f"{result.dtype}, eager has {expected.dtype}"
    if result.shape != expected.shape:
        return f"sizes {list(result.shape)}, eager has {list(expected.shape)}"
    result, expected = result.detach().cpu(), expected.detach().cpu()
    rtol, atol = _TOLERANCES.get(expected.dtype, (0.0, 0.0))
    if not expected.dtype.is_floating_point:
        wrong = result != expected
    else:
        wrong = ~torch.isclose(result, expected, rtol=rtol, atol=atol, equal_nan=True)
    if not wrong.any():
        return ""
    apart = (result.double() - expected.double()).abs()
    place = int(torch.where(wrong, apart, -1.0).nan_to_num(nan=float("inf")).argmax())
    index = list(map(int, torch.unravel_index(torch.tensor(place), expected.shape))) if expected.dim() else []
    return (
        f"{int(wrong.sum())} of {expected.numel()} elements differ by more than {rtol:g} * |eager| + {atol:g}; the largest"
        f" difference is {float(apart.flatten()[place]):g} at {index}: {result.flatten()[place].item()}, eager has"
        f" {expected.flatten()[place].item()}"
    )
