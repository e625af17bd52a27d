"""A memory snapshot as a page: segments with their blocks, what was held over time, and the largest holders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from dicore.page import Page, without_controls

__all__ = ["curve", "holders", "page"]

_WIDTH, _HEIGHT = 900, 220
_MOST_SEGMENTS, _MOST_HOLDERS = 400, 40
_FILL = {"active_allocated": "#1f6feb", "active_awaiting_free": "#d9730d", "inactive": "none"}
_STYLE = """
.bars svg { display: block; width: 100%; height: 14px; margin: 2px 0; border: 1px solid #8888; }
.held { width: 100%; height: auto; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
"""

Segment = Mapping[str, Any]
Frame = Mapping[str, Any]


def page(snapshot: Mapping[str, Any], title: str) -> Page:
    """`snapshot` as torch.cuda's and torch.dipu's `_snapshot()` give it. Raises KeyError and the like if it is none."""
    segments = sorted(snapshot["segments"], key=lambda segment: -segment["total_size"])
    parts = [f"<h1>Memory in {_text(title)}</h1>"]
    for device, events in enumerate(snapshot["device_traces"]):
        mine = [segment for segment in segments if segment.get("device", 0) == device]
        if not mine and not events:
            continue
        reserved = sum(segment["total_size"] for segment in mine)
        held = sum(segment["allocated_size"] for segment in mine)
        parts.append(f"<h2>Device {device}: {_size(held)} held of {_size(reserved)} taken</h2>")
        parts += [_drawn(curve(events)), _holders_table(holders(mine)), _segments(mine)]
    return Page(title=f"Memory: {title}", body="\n".join(parts), styles=[_STYLE])


def curve(events: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Microseconds and bytes: what was held after each event, beyond what was held when recording began."""
    points: list[tuple[int, int]] = []
    held = 0
    for event in events:
        if event["action"] == "alloc":
            held += event["size"]
        elif event["action"] == "free_completed":
            held -= event["size"]
        else:
            continue
        points.append((event.get("time_us", len(points)), held))
    return points


def holders(segments: Iterable[Segment]) -> list[tuple[str, int, int]]:
    """Call site, blocks and bytes of what is held, the most bytes first."""
    count: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                site = _call_site(block.get("frames") or ())
                count[site] += 1
                total[site] += block["size"]
    return [(site, count[site], size) for site, size in total.most_common()]


def _call_site(frames: Sequence[Frame]) -> str:
    python = [frame for frame in frames if str(frame["filename"]).endswith(".py")] or list(frames)
    for frame in python:
        if "-packages/" not in frame["filename"]:
            return f"{frame['filename']}:{frame['line']} in {frame['name']}"
    return (
        f"{python[0]['filename']}:{python[0]['line']} in {python[0]['name']}" if python else "(not recorded)"
    )


def _drawn(points: Sequence[tuple[int, int]]) -> str:
    if len(points) < 2:
        return "<p>No history was recorded.</p>"
    first, last = points[0][0], points[-1][0]
    low, high = min(0, *(held for _, held in points)), max(held for _, held in points)
    steps = []
    for time, held in points[:: max(1, len(points) // 4000)]:
        x = (time - first) / max(1, last - first) * _WIDTH
        y = _HEIGHT - (held - low) / max(1, high - low) * _HEIGHT
        steps.append(f"{x:.1f},{y:.1f}")
    return (
        f"<p>Held over {(last - first) / 1e6:.3f} s, up to {_size(high)}</p>"
        f'<svg class="held" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="memory held over time">'
        f'<polyline points="{" ".join(steps)}" fill="none" stroke="#1f6feb" stroke-width="1.5"/></svg>'
    )


def _holders_table(rows: Sequence[tuple[str, int, int]]) -> str:
    cells = "".join(
        f'<tr><td>{_text(site)}</td><td class="number">{count}</td><td class="number">{_size(size)}</td></tr>'
        for site, count, size in rows[:_MOST_HOLDERS]
    )
    return f"<h3>Largest holders</h3><table><tr><th>allocated at</th><th>blocks</th><th>size</th></tr>{cells}</table>"


def _segments(segments: Sequence[Segment]) -> str:
    bars = "".join(_bar(segment) for segment in segments[:_MOST_SEGMENTS])
    left = len(segments) - _MOST_SEGMENTS
    more = f"<p>and {left} smaller segments</p>" if left > 0 else ""
    return f'<h3>{len(segments)} segments, filled where held</h3><div class="bars">{bars}</div>{more}'


def _bar(segment: Segment) -> str:
    parts, at = [], 0
    for block in segment["blocks"]:
        fill = _FILL.get(block["state"], "none")
        if fill != "none":
            tip = f"{_size(block['size'])} {_call_site(block.get('frames') or ())}"
            parts.append(
                f'<rect x="{at}" y="0" width="{block["size"]}" height="1" fill="{fill}"><title>{_text(tip)}</title></rect>'
            )
        at += block["size"]
    name = f"{segment['segment_type']}, {_size(segment['total_size'])}, stream {segment['stream']}"
    return (
        f'<svg viewBox="0 0 {segment["total_size"]} 1" preserveAspectRatio="none"><title>{_text(name)}</title>'
        f"{''.join(parts)}</svg>"
    )


def _size(size: int) -> str:
    return f"{size / 2**20:.2f} MiB" if abs(size) >= 2**20 else f"{size / 1024:.2f} KiB"


def _text(text: object) -> str:
    return escape(without_controls(str(text)))
