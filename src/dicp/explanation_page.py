"""An explanation as one HTML file: what is fused with what, what runs eagerly and why, and the code of each part."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from dicore.page import Page, without_controls
from dicp.explanation_drawing import Drawing, drawing

if TYPE_CHECKING:
    from dicp.dynamo_bridge.record import GraphRecord, RecordedStep
    from dicp.explanation import Explanation

__all__ = ["page"]

_STYLE = """
.fused { overflow-x: auto; border: 1px solid var(--line); margin: 8px 0; }
.fused text { font: 11px var(--mono); fill: #1b1f24; }
.fused .edge { stroke: var(--bar); fill: none; }
pre { overflow-x: auto; background: var(--panel); padding: 8px 12px; margin: 6px 0; }
summary { cursor: pointer; }
"""


def page(explanation: Explanation) -> Page:
    """The page."""
    from dicp.explanation import summary

    parts = [
        f"<h1>{_text(explanation.name)} by {_text(explanation.backend)}</h1>",
        f'<div class="answer"><p class="sentence">{_text(summary(explanation.graphs))}</p></div>',
    ]
    for reason, times in explanation.breaks.items():
        parts.append(f"<p>Graph break ({times} times): {_text(' '.join(reason.split()))}</p>")
    parts += [f"<p>Warning: {_text(warning)}</p>" for warning in explanation.warnings]
    styles = [_STYLE]
    for number, graph in enumerate(explanation.graphs):
        drawn = drawing(graph, f"drawing{number}")
        # As large as it is: the page scrolls.
        styles.append(f".fused .drawing{number} {{ width: {drawn.width}px; height: {drawn.height}px; }}")
        parts.append(f"<h2>Graph {number}, {_text(graph.kind)}: {_text(summary([graph]))}</h2>")
        parts += _graph(graph, drawn)
    return Page(title=f"{explanation.name} by {explanation.backend}", body="\n".join(parts), styles=styles)


def _graph(graph: GraphRecord, drawn: Drawing) -> Iterator[str]:
    if graph.failure:
        yield f"<p>All of it runs eagerly: {_text(graph.failure)}</p>"
    yield f'<div class="fused">{drawn.svg}</div>'
    yield '<p class="dim">Boxes of one colour run as one kernel or compiled part; boxes with a red border run eagerly.</p>'
    for number, step in enumerate(graph.steps):
        yield from _step(number, step)
    for recorded in graph.passes:
        if recorded.changed:
            yield _folded(f"after {recorded.name}", recorded.text)
    if graph.executor:
        yield _folded("what runs the steps", graph.executor)


def _step(number: int, step: RecordedStep) -> Iterator[str]:
    from dicp.explanation import reasons, step_title

    yield f"<h3>{_text(step_title(number, step))}</h3>"
    found = reasons(step)
    if found:
        items = "".join(
            f"<li>{_text(', '.join(names))}: {_text(reason)}</li>" for reason, names in found.items()
        )
        yield f"<ul>{items}</ul>"
    yield _folded("nodes", step.text)
    for name, text in step.artifacts.items():
        yield _folded(name, text)


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{_text(title)}</summary><pre>{_text(text)}</pre></details>"


def _text(text: str) -> str:
    return escape(without_controls(text))
