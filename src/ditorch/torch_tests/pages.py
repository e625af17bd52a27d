"""The results as one HTML file that works without a network: counts by file and operator, search, causes."""

from __future__ import annotations

import html
import json
import os
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ditorch.torch_tests.model import State
from ditorch.torch_tests.rows import Row

__all__ = ["page", "write_page"]

_FOLDER = Path(__file__).with_name("page")
_FIELDS = ("file", "case", "operator", "dtype", "result", "seconds", "samples", "message", "reason", "detail")


def write_page(path: Path, rows: Sequence[Row], title: str) -> None:
    """Complete or not there at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text(page(rows, title), encoding="utf-8")
    temporary.replace(path)


def page(rows: Sequence[Row], title: str) -> str:
    """The text of the page."""
    parts = {
        "title": html.escape(title),
        "style": _asset("page.css"),
        "script": _asset("page.js"),
        "data": _embedded(
            {"states": list(State), "fields": _FIELDS, "rows": [_values(row) for row in _ordered(rows)]}
        ),
        "summary": _summary(rows),
    }
    text = _asset("page.html")
    pieces = text.split("{{")
    # In one pass: what is put in is data and is not looked at again.
    return pieces[0] + "".join(
        parts[name] + rest for name, _, rest in (p.partition("}}") for p in pieces[1:])
    )


def _ordered(rows: Sequence[Row]) -> list[Row]:
    """What has to be looked at comes first."""
    return sorted(rows, key=lambda row: (not row.result.unexpected, not row.result.listed, row.key))


def _values(row: Row) -> list[str | float | int]:
    return [getattr(row, name) for name in _FIELDS]


def _summary(rows: Sequence[Row]) -> str:
    """For a reader whose browser runs no script."""
    counts = Counter(row.result for row in rows)
    cells = "".join(f"<li><b>{counts[state]:,}</b> {state}</li>" for state in State if counts[state])
    return f"<ul id='counts'>{cells}</ul>"


@cache
def _asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _embedded(value: object) -> str:
    """JSON that can stand inside a script element, whatever the texts hold."""
    return json.dumps(value).replace("<", "\\u003c")
