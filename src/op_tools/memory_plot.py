"""Curves of memory over time as a small SVG drawing that needs nothing but a browser."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

__all__ = ["plot", "size_text"]

Points = Sequence[tuple[float, float]]  # seconds and bytes

_WIDTH, _HEIGHT = 720, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 16, 34, 46
_COLOURS = ("#1f6feb", "#d9730d", "#2da44e")
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
_TIMES = (("h", 3600.0), ("min", 60.0), ("s", 1.0))


def size_text(size: float) -> str:
    """`1.50 GiB`: a number of bytes for people."""
    unit, factor = next(((u, f) for u, f in _UNITS if size >= f), _UNITS[-1])
    return f"{size / factor:.2f} {unit}" if factor > 1 else f"{size:.0f} {unit}"


def _steps(highest: float) -> list[float]:
    """Round numbers from 0 to just above the highest value, four to eight of them."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [step * number for number in range(math.ceil(highest / step) + 1)]


def _number(value: float) -> str:
    return f"{value:.10g}"


class _Axis:
    """Values onto pixels, in a unit that fits the highest value."""

    def __init__(self, highest: float, units: Sequence[tuple[str, float]], start: float, end: float) -> None:
        self.unit, self.factor = next(((u, f) for u, f in units if highest >= 2 * f), units[-1])
        self.marks = _steps(highest / self.factor)
        self.start = start
        self._per_unit = (end - start) / self.marks[-1]

    def pixel(self, value: float) -> float:
        return self.start + value / self.factor * self._per_unit


def plot(title: str, curves: Mapping[str, Points]) -> str:
    """The drawing: axes with units, a grid, one line per curve and its highest value."""
    points = [point for curve in curves.values() for point in curve] or [(0.0, 0.0)]
    across = _Axis(max(seconds for seconds, _ in points), _TIMES, _LEFT, _WIDTH - _RIGHT)
    up = _Axis(max(size for _, size in points), _UNITS, _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#24292f">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">{escape(title)}</text>',
        *_grid(across, up),
    ]
    for number, (name, curve) in enumerate(curves.items()):
        parts += _drawn(name, curve, number, across, up)
    return "\n".join([*parts, "</svg>\n"])


def _grid(across: _Axis, up: _Axis) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for mark in up.marks:
        y = f"{up.pixel(mark * up.factor):.1f}"
        parts.append(f'<line x1="{_LEFT}" y1="{y}" x2="{right}" y2="{y}" stroke="#d0d7de"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y}" text-anchor="end" dominant-baseline="middle">{_number(mark)}</text>'
        )
    for mark in across.marks:
        x = f"{across.pixel(mark * across.factor):.1f}"
        parts.append(f'<line x1="{x}" y1="{bottom}" x2="{x}" y2="{bottom + 4}" stroke="#57606a"/>')
        parts.append(f'<text x="{x}" y="{bottom + 17}" text-anchor="middle">{_number(mark)}</text>')
    middle = (_TOP + bottom) / 2
    parts.append(
        f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">time ({across.unit})</text>'
    )
    parts.append(
        f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">memory ({up.unit})</text>'
    )
    return parts


def _drawn(name: str, points: Points, number: int, across: _Axis, up: _Axis) -> list[str]:
    colour = _COLOURS[number % len(_COLOURS)]
    line = " ".join(f"{across.pixel(seconds):.1f},{up.pixel(size):.1f}" for seconds, size in points)
    highest = max((size for _, size in points), default=0)
    x = _WIDTH - _RIGHT - 190 * (2 - number)
    return [
        f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
        f'<rect x="{x}" y="12" width="10" height="10" fill="{colour}"/>',
        f'<text x="{x + 15}" y="21">{escape(name)}, at most {size_text(highest)}</text>',
    ]
