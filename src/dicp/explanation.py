"""What a backend makes of a function: collected from one call, shown as text or as a page."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

# Private, and here only: torch counts breaks of graphs and their reasons here.
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_leaves, tree_map_only

from dicore.console import counted
from dicp import registry
from dicp.dynamo_bridge.compile_fx import compile_fx
from dicp.dynamo_bridge.record import GraphRecord, RecordedStep, recording
from dicp.errors import LOG

__all__ = ["SECTIONS", "Explanation", "explained"]

SECTIONS = ("graph", "passes", "steps", "artifacts", "executor")


@dataclass
class Explanation:
    """What became of a function. As text: `str`, or `text` with some of the sections."""

    name: str
    backend: str
    graphs: list[GraphRecord] = field(default_factory=list)
    breaks: dict[str, int] = field(default_factory=dict)
    """Why TorchDynamo made more than one graph, and how often."""
    warnings: list[str] = field(default_factory=list)
    result: Any = None
    """What the function returned."""

    def __str__(self) -> str:
        return self.text()

    def text(self, sections: Sequence[str] = SECTIONS) -> str:
        """For people; `sections` are some of SECTIONS, the summary always comes first."""
        return "\n".join(self._lines(sections)) + "\n"

    def write_page(self, path: str | Path) -> None:
        """One HTML file with the same, and a drawing of what is fused. Raises OSError."""
        from dicp.explanation_page import page

        page(self).write(path)

    def _lines(self, sections: Sequence[str]) -> Iterator[str]:
        yield f"{self.name} by {self.backend}: {counted(len(self.graphs), 'graph')}, {summary(self.graphs)}"
        for reason, times in self.breaks.items():
            yield f"graph break ({times} times): {' '.join(reason.split())}"
        for warning in self.warnings:
            yield f"warning: {warning}"
        for number, graph in enumerate(self.graphs):
            yield ""
            yield f"graph {number}, {graph.kind}: {summary([graph])}"
            if graph.failure:
                yield f"  all of it runs eagerly: {graph.failure}"
            yield from _indented(_graph_lines(graph, sections))


def summary(graphs: Sequence[GraphRecord]) -> str:
    """How many operators are compiled in how many parts."""
    operators = sum(graph.operators for graph in graphs)
    compiled = sum(graph.compiled_operators for graph in graphs)
    parts = sum(step.compiled for graph in graphs for step in graph.steps)
    return f"{compiled} of {counted(operators, 'operator')} compiled, in {counted(parts, 'part')}"


def _graph_lines(graph: GraphRecord, sections: Sequence[str]) -> Iterator[str]:
    if "graph" in sections and graph.passes:
        yield "the graph as AOTAutograd made it"
        yield from _indented(graph.passes[0].text.splitlines())
    if "passes" in sections:
        for recorded in graph.passes[1:]:
            if recorded.changed:
                yield f"after the pass {recorded.name} ({recorded.seconds * 1e3:.1f} ms)"
                yield from _indented(recorded.text.splitlines())
    for number, step in enumerate(graph.steps):
        yield step_title(number, step)
        if "steps" in sections:
            yield from _indented(step.text.splitlines())
        for reason, names in reasons(step).items():
            yield f"  eager: {', '.join(names)}: {reason}"
        if "artifacts" in sections:
            for name, text in step.artifacts.items():
                if name != "graph.txt":
                    yield f"  {name}"
                    yield from _indented(_indented(text.splitlines()))
    if "executor" in sections and graph.executor:
        yield "what runs the steps"
        yield from _indented(graph.executor.splitlines())


def step_title(number: int, step: RecordedStep) -> str:
    """One line about a step."""
    how = f"compiled in {step.seconds:.3f} s" if step.compiled else "eager"
    return f"step {number}: {counted(len(step.nodes), 'node')}, {how}"


def reasons(step: RecordedStep) -> dict[str, list[str]]:
    """Why calls run eagerly, and which."""
    found: dict[str, list[str]] = {}
    for name, reason in step.reasons.items():
        found.setdefault(reason, []).append(name)
    return found


def _indented(lines: Iterator[str] | Sequence[str]) -> Iterator[str]:
    return (f"  {line}" if line else line for line in lines)


def explained(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    backend: str,
    *,
    dynamic: bool | None = None,
    gradients: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Explanation:
    """As `dicp.explain`."""
    registry.find(backend)
    name = getattr(function, "__qualname__", None) or type(function).__name__
    explanation = Explanation(name, backend)

    def compiled_by(gm: Any, inputs: Any, **given: Any) -> Callable[..., Any]:
        return compile_fx(gm, inputs, backend, **given)

    compiled = torch.compile(
        _with_code_of_its_own(function), backend=compiled_by, dynamic=dynamic, options=dict(options or {})
    )
    args, kwargs = tree_map_only(torch.Tensor, _copy, (tuple(args), dict(kwargs)))
    before = Counter(counters["graph_break"])
    with recording() as explanation.graphs, _warnings_to(explanation.warnings):
        explanation.result = compiled(*args, **kwargs)
        if gradients:
            _differentiate(function, args, kwargs, explanation.result)
    explanation.breaks = dict(Counter(counters["graph_break"]) - before)
    return explanation


def _with_code_of_its_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """Dynamo keeps graphs by code: those of the user's own calls are left alone."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    code = call.__code__.replace(co_name=f"explained_{getattr(function, '__name__', 'call')}")
    return FunctionType(code, call.__globals__, closure=call.__closure__)


def _copy(value: torch.Tensor) -> torch.Tensor:
    """With its strides and its place among leaves."""
    copied = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copied.copy_(value.detach()).requires_grad_(value.requires_grad)


def _differentiate(function: Any, args: Any, kwargs: Any, result: Any) -> None:
    """The gradients of all that has some; those of the user's tensors stay as they are."""
    leaves = [
        value
        for value in tree_leaves((args, kwargs))
        if isinstance(value, torch.Tensor) and value.requires_grad
    ]
    if isinstance(function, torch.nn.Module):
        leaves += [parameter for parameter in function.parameters() if parameter.requires_grad]
    outputs = [
        value for value in tree_leaves(result) if isinstance(value, torch.Tensor) and value.requires_grad
    ]
    if leaves and outputs:
        ones = [torch.ones_like(value) for value in outputs]
        torch.autograd.grad(outputs, leaves, ones, allow_unused=True)


class _Collector(logging.Handler):
    def __init__(self, texts: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.texts = texts

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def _warnings_to(texts: list[str]) -> Iterator[None]:
    handler = _Collector(texts)
    LOG.addHandler(handler)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
