"""The results as one HTML file that works without a network: counts by file and operator, search, causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from _ditorch.torch_tests.model import State
from _ditorch.torch_tests.rows import Row
from dicore.page import Page, asset

__all__ = ["page_of"]

_FIELDS = ("file", "case", "operator", "dtype", "result", "seconds", "samples", "message", "reason", "detail")


def page_of(rows: Sequence[Row], title: str) -> Page:
    """The page of the rows of a run."""
    return Page(
        title=title,
        body=f"<h1>{escape(title)}</h1>\n{_summary(rows)}\n{_asset('controls.html')}",
        styles=[_asset("page.css")],
        scripts=[_asset("page.js")],
        data={
            "data": {
                "states": list(State),
                "fields": _FIELDS,
                "rows": [_values(row) for row in _ordered(rows)],
            }
        },
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


def _asset(name: str) -> str:
    return asset("_ditorch.torch_tests", f"page/{name}")
