"""A graph as a drawing: operators in layers from top to bottom, in the colours of what they are fused into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from dicore.page import without_controls

if TYPE_CHECKING:
    from dicp.dynamo_bridge.record import GraphRecord

__all__ = ["Drawing", "drawing"]

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _LETTERS, _LINE = 168, 34, 14, 26, 24, 18
_MOST = 500
_COLOURS = ("#cfe3ff", "#d3f0d8", "#fde4c3", "#e5d9fb", "#fbd6e4", "#d0f0f0", "#f3efc0", "#e2e5ea")


@dataclass(frozen=True)
class _Box:
    """What is drawn as one: a node, or in large graphs all nodes of a group."""

    name: str
    lines: tuple[str, str]
    tip: str
    group: str
    eager: bool
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Drawing:
    """SVG, and how large it is in pixels."""

    svg: str
    width: int = 0
    height: int = 0


def drawing(graph: GraphRecord, name: str) -> Drawing:
    """The drawing as an element of class `name`. Of graphs with more than 500 nodes each fused part is one box."""
    boxes = list(_boxes(graph))
    if len(boxes) > _MOST:
        boxes = list(_joined(boxes))
    if len(boxes) > _MOST:
        return Drawing(f'<p class="dim">{len(boxes)} parts are too many for a drawing.</p>')
    places = _places(boxes)
    colours = {
        group: _COLOURS[i % len(_COLOURS)]
        for i, group in enumerate(dict.fromkeys(box.group for box in boxes))
    }
    legend = list(_legend(colours))
    top = _LINE * (len(legend) // 2)
    width = max((x for x, _ in places.values()), default=0) + _WIDTH + _GAP_X
    height = max((y for _, y in places.values()), default=0) + _HEIGHT + _GAP_Y + top
    parts = [*_edges(boxes, places), *(_drawn(box, *places[box.name], colours[box.group]) for box in boxes)]
    body = f'{"".join(legend)}<g transform="translate(0 {top})">{"".join(parts)}</g>'
    svg = f'<svg class="{name}" width="{width}" height="{height}" viewBox="0 0 {width} {height}">{body}</svg>'
    return Drawing(svg, width, height)


def _legend(colours: Mapping[str, str]) -> Iterator[str]:
    """What the colours mean, where there are not more groups than colours."""
    if len(colours) > len(_COLOURS):
        return
    for row, (group, colour) in enumerate(colours.items()):
        y = _LINE * row
        yield f'<circle cx="{_GAP_X + 6}" cy="{y + 10}" r="6" fill="{colour}" stroke="#5f6b76"/>'
        yield f'<text x="{_GAP_X + 18}" y="{y + 14}">{_text(group)}</text>'


def _boxes(graph: GraphRecord) -> Iterator[_Box]:
    for node in graph.inputs:
        yield _Box(node.name, (node.name, node.type), f"input {node.name}: {node.type}", "inputs", False, ())
    for number, step in enumerate(graph.steps):
        for node in step.nodes:
            kernel = step.kernels.get(node.name, "")
            group = ": ".join(filter(None, (f"part {number}", kernel))) if step.compiled else "eager"
            reason = step.reasons.get(node.name, "")
            tip = f"{node.name} = {node.operator}: {node.type}\n{reason or group}"
            operator = node.operator.removeprefix("aten.").removesuffix(".default")
            yield _Box(node.name, (operator, node.type), tip, group, not step.compiled, node.inputs)


def _joined(boxes: list[_Box]) -> Iterator[_Box]:
    """One box for each group; an eager call stays by itself."""
    joint = {box.name: box.name if box.eager or box.group == "inputs" else box.group for box in boxes}
    members: dict[str, list[_Box]] = {}
    for box in boxes:
        members.setdefault(joint[box.name], []).append(box)
    for name, inside in members.items():
        inputs = dict.fromkeys(joint[i] for box in inside for i in box.inputs if joint.get(i, name) != name)
        if len(inside) == 1:
            yield _Box(name, inside[0].lines, inside[0].tip, inside[0].group, inside[0].eager, tuple(inputs))
        else:
            tip = "\n".join(box.lines[0] for box in inside)
            yield _Box(name, (name, f"{len(inside)} operators"), tip, inside[0].group, False, tuple(inputs))


def _places(boxes: list[_Box]) -> dict[str, tuple[int, int]]:
    """Each box below what it reads; in a layer in the order of the middles of what they read."""
    layer: dict[str, int] = {}
    for box in boxes:
        layer[box.name] = 1 + max((layer.get(name, -1) for name in box.inputs), default=-1)
    # Inputs stand right above their first reader.
    for box in reversed(boxes):
        if not box.inputs:
            readers = (
                [layer[other.name] for other in boxes if box.name in other.inputs]
                if len(boxes) <= _MOST
                else []
            )
            layer[box.name] = min(readers, default=layer[box.name] + 1) - 1
    lowest = min(layer.values(), default=0)
    rows: dict[int, list[_Box]] = {}
    for box in boxes:
        rows.setdefault(layer[box.name] - lowest, []).append(box)
    places: dict[str, tuple[int, int]] = {}
    for number in sorted(rows):
        row = sorted(rows[number], key=lambda box: _middle(box, places))
        for column, box in enumerate(row):
            places[box.name] = (
                _GAP_X + column * (_WIDTH + _GAP_X),
                _GAP_Y // 2 + number * (_HEIGHT + _GAP_Y),
            )
    return places


def _middle(box: _Box, places: Mapping[str, tuple[int, int]]) -> float:
    above = [places[name][0] for name in box.inputs if name in places]
    return sum(above) / len(above) if above else 0.0


def _edges(boxes: list[_Box], places: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    for box in boxes:
        x, y = places[box.name]
        for name in dict.fromkeys(box.inputs):
            if name in places:
                from_x, from_y = places[name][0] + _WIDTH // 2, places[name][1] + _HEIGHT
                to_x, half = x + _WIDTH // 2, (from_y + y) // 2
                yield f'<path class="edge" d="M{from_x} {from_y}C{from_x} {half} {to_x} {half} {to_x} {y}"/>'


def _drawn(box: _Box, x: int, y: int, colour: str) -> str:
    border = "#b3261e" if box.eager else "#5f6b76"
    lines = [
        f'<text x="{x + 6}" y="{y + 13 + 14 * n}">{_text(line[:_LETTERS])}</text>'
        for n, line in enumerate(box.lines)
    ]
    return (
        f'<g><title>{_text(box.tip)}</title><rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="4"'
        f' fill="{colour}" stroke="{border}" stroke-width="{2 if box.eager else 1}"/>{"".join(lines)}</g>'
    )


def _text(text: str) -> str:
    return escape(without_controls(text))
