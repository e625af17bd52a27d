"""Draws a part of a Chrome trace as an SVG picture: `python tools/draw_trace.py trace.json picture.svg --around diopiBatchNorm`.

For documents, where a trace viewer is no help: threads above, streams below, an arrow from each launch to its work.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Annotated, Any

import typer

Event = dict[str, Any]
WIDTH, ROW, GAP, MARGIN = 1200, 22, 26, 8
COLOURS = {
    "cpu_op": "#c9dcf5",
    "user_annotation": "#e3e3e3",
    "privateuse1_runtime": "#f7dcc0",
    "gpu_user_annotation": "#dfeedd",
    "kernel": "#9fd39a",
    "gpu_memcpy": "#e9a8a3",
}


def tracks(events: list[Event]) -> list[tuple[str, list[tuple[int, Event]]]]:
    """Title and slices of every thread and stream; each slice with its depth, as slices lie over each other."""
    devices = {e["pid"] for e in events if e["cat"] in ("kernel", "gpu_memcpy", "gpu_user_annotation")}
    keys = sorted({(e["pid"], e["tid"]) for e in events}, key=lambda key: (key[0] in devices, key))
    found = []
    for number, key in enumerate(keys):
        slices: list[tuple[int, Event]] = []
        ends: list[float] = []
        mine = [e for e in events if (e["pid"], e["tid"]) == key]
        for event in sorted(mine, key=lambda e: (e["ts"], -e["dur"], e["cat"] == "kernel")):
            while ends and ends[-1] <= event["ts"]:
                ends.pop()
            slices.append((len(ends), event))
            ends.append(event["ts"] + event["dur"])
        title = f"dipu:{key[0]}, stream {key[1]}" if key[0] in devices else f"thread {number + 1}"
        found.append((title, slices))
    return found


def picture(events: list[Event], begin: float, end: float) -> str:
    scale = (WIDTH - 2 * MARGIN) / (end - begin)
    shown = [
        e
        for e in events
        if e.get("ph") == "X" and e.get("cat") in COLOURS and e["ts"] < end and e["ts"] + e["dur"] > begin
    ]
    parts: list[str] = []
    places: dict[tuple[str, int], tuple[float, float]] = {}
    top = float(MARGIN)
    for title, slices in tracks(shown):
        parts.append(f'<text x="{MARGIN}" y="{top + 14}" font-weight="bold">{escape(title)}</text>')
        top += GAP
        for depth, event in slices:
            left = MARGIN + max(0.0, event["ts"] - begin) * scale
            right = MARGIN + min(end - begin, event["ts"] + event["dur"] - begin) * scale
            y, width = top + depth * ROW, max(1.0, right - left)
            parts.append(
                f'<rect x="{left:.1f}" y="{y:.0f}" width="{width:.1f}" height="{ROW - 2}" '
                f'fill="{COLOURS[event["cat"]]}" stroke="#777" stroke-width="0.4"/>'
            )
            letters = int(width / 6.3)
            if letters >= 4:
                name = event["name"] if len(event["name"]) <= letters else event["name"][: letters - 1] + "…"
                parts.append(f'<text x="{left + 2:.1f}" y="{y + 14:.0f}">{escape(name)}</text>')
            if (flow := event.get("args", {}).get("correlation")) and event["cat"] != "cpu_op":
                side = "launch" if event["cat"] == "privateuse1_runtime" else "work"
                places[side, flow] = (left, y + ROW - 2 if side == "launch" else y)
        top += (1 + max((depth for depth, _ in slices), default=0)) * ROW + GAP / 2
    for (side, flow), (x, y) in places.items():
        if side == "launch" and ("work", flow) in places:
            to_x, to_y = places["work", flow]
            parts.append(
                f'<path d="M {x:.1f} {y:.0f} L {to_x:.1f} {to_y:.0f}" stroke="#b03030" fill="none" marker-end="url(#arrow)"/>'
            )
    head = (
        '<marker id="arrow" markerWidth="7" markerHeight="6" refX="6" refY="3" orient="auto">'
        '<path d="M0,0 L7,3 L0,6 z" fill="#b03030"/></marker>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top:.0f}" font-family="sans-serif" font-size="11">'
        f'<defs>{head}</defs><rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def draw(
    trace: Annotated[Path, typer.Argument(help="what export_chrome_trace wrote")],
    to: Annotated[Path, typer.Argument(help="the picture, an SVG file")],
    around: Annotated[str, typer.Option(help="the name of a slice in the middle")] = "",
    occurrence: Annotated[int, typer.Option(help="which of those of this name, from 0")] = 0,
    microseconds: Annotated[float, typer.Option(help="how much time is shown")] = 2000.0,
) -> None:
    events: list[Event] = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    slices = sorted(
        (e for e in events if e.get("ph") == "X" and e.get("cat") in COLOURS), key=lambda e: e["ts"]
    )
    named = [e for e in slices if e["name"] == around] if around else slices[:1]
    if len(named) <= occurrence:
        raise typer.BadParameter(f"{trace} has {len(named)} slices named {around!r}")
    middle = named[occurrence]["ts"] + named[occurrence]["dur"] / 2
    to.write_text(picture(events, middle - microseconds / 2, middle + microseconds / 2), encoding="utf-8")


if __name__ == "__main__":
    typer.run(draw)
