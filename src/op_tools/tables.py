"""The bordered tables that users of the tools know, as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dicore.console import WIDTH, plain_table

__all__ = [
    "cast_table", "comparison_table", "describe_table", "figure", "fitted_table", "plain_table", "time_table",
    "verdict_table",
]  # fmt: skip

_FACTS = ("shape", "stride", "numel", "dtype", "device", "requires_grad", "layout", "data_ptr")
_CAPTURE_FACTS = ("device", "dtype", "numel", "shape", "stride", "requires_grad", "layout", "data_ptr")
_COMPARISON = ("allclose", "max_abs_diff", "max_relative_diff", "atol", "rtol", "error_info")
_TIMES = ("forward_elasped", "backward_elasped")
_NAME_WIDTH = 30
_DECIMALS_OF_DIFFERENCES = 9
_DECIMALS_OF_TIMES = 8
_LARGEST_IN_FULL = 1e9
_SMALLEST_IN_FULL, _LEAST_WHOLE, _LARGEST_FIGURE = 1e-3, 1e3, 1e6
_LEAST_NAME, _LEAST_COLUMNS = 24, 3


def describe_table(rows: Sequence[Mapping[str, Any]], *, capture: bool = False) -> str:
    """Tensors and values of a call (rows of `describe`). Capture has an order of columns of its own."""
    columns = ["name", *(_CAPTURE_FACTS if capture else _FACTS)]
    if any("value" in row for row in rows):
        columns.append("value")
    return _table_of(columns, rows)


def comparison_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Compared values: name, allclose, differences, tolerances; with forward_id where the rows have one."""
    columns = ["name", *_COMPARISON]
    if any("forward_id" in row for row in rows):
        columns.insert(0, "forward_id")
    return plain_table(columns, ([_comparison_cell(column, row) for column in columns] for row in rows))


def figure(value: Any) -> str:
    """A measured number, wherever the form is ours to choose: four digits, thousands apart, an exponent for the very small
    and the very large. The page of the report writes it in the same way (elements.js)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if value == int(value) and size < _LARGEST_FIGURE:
        return f"{int(value):,}"
    if not _SMALLEST_IN_FULL <= size < _LARGEST_FIGURE:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}e{int(exponent):+d}"
    return f"{math.floor(value + 0.5):,}" if size >= _LEAST_WHOLE else f"{float(f'{value:.4g}'):.10g}"


def verdict_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Compared values with their verdicts, in 100 columns."""
    columns = ("name", "verdict", *_COMPARISON[:-1])
    return fitted_table(columns, [[figure(row.get(column, "")) for column in columns] for row in rows])


def fitted_table(columns: Sequence[str], rows: Sequence[Sequence[object]], width: int = WIDTH) -> str:
    """A table of at most so many columns of text: long names are cut in the middle, then the last columns are left out."""
    first = max((len(str(row[0])) for row in rows), default=0)
    while True:
        table = plain_table(columns, rows)
        over = table.find("\n") - width
        if over <= 0:
            return table
        room = max(_LEAST_NAME, first - over)
        if room < first:
            rows = [[_cut(str(row[0]), room), *row[1:]] for row in rows]
            first = room
        elif len(columns) > _LEAST_COLUMNS:
            columns, rows = columns[:-1], [row[:-1] for row in rows]
        else:
            return table


def _cut(name: str, room: int) -> str:
    if len(name) <= room:
        return name
    behind = (room - 3) // 2
    return f"{name[: room - 3 - behind]}...{name[len(name) - behind :]}"


def _comparison_cell(column: str, row: Mapping[str, Any]) -> object:
    value = row.get(column, "")
    if column == "name":
        return str(value).ljust(_NAME_WIDTH)
    if column in ("max_abs_diff", "max_relative_diff", "atol", "rtol") and value != "":
        number = float(value)
        # Relative to next to nothing, a difference has more digits than a screen has columns.
        form = "e" if _LARGEST_IN_FULL <= abs(number) < math.inf else "f"
        return f"{number:.{_DECIMALS_OF_DIFFERENCES}{form}}"
    return value


def time_table(rows: Sequence[Mapping[str, Any]], *, shorten: bool = False) -> str:
    """Elapsed times in milliseconds; a column that no row fills is left out. `shorten` cuts names to 100 columns."""
    times = [column for column in _TIMES if any(isinstance(row.get(column), int | float) for row in rows)]
    columns = ["name", "forward_id", *times, "unit"]
    cells = [[_time_cell(column, row) for column in columns] for row in rows]
    return fitted_table(columns, cells) if shorten else plain_table(columns, cells)


def _time_cell(column: str, row: Mapping[str, Any]) -> object:
    value = row.get(column, "ms" if column == "unit" else "")
    is_time = column in _TIMES and isinstance(value, int | float)
    return f"{value:.{_DECIMALS_OF_TIMES}f}" if is_time else value


def cast_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """What a dtype cast did: name, target, action, config."""
    return _table_of(("name", "target", "action", "config"), rows)


def _table_of(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    return plain_table(columns, ([row.get(column, "") for column in columns] for row in rows))
