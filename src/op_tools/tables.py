"""The bordered tables that users of the tools know, as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dicore.console import plain_table

__all__ = ["cast_table", "comparison_table", "describe_table", "plain_table", "time_table"]

_FACTS = ("shape", "stride", "numel", "dtype", "device", "requires_grad", "layout", "data_ptr")
_CAPTURE_FACTS = ("device", "dtype", "numel", "shape", "stride", "requires_grad", "layout", "data_ptr")
_COMPARISON = ("allclose", "max_abs_diff", "max_relative_diff", "atol", "rtol", "error_info")
_TIMES = ("forward_elasped", "backward_elasped")
_NAME_WIDTH = 30
_DECIMALS_OF_DIFFERENCES = 9
_DECIMALS_OF_TIMES = 8
_LARGEST_IN_FULL = 1e9


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


def time_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Elapsed times in milliseconds; a column that no row fills is left out."""
    times = [column for column in _TIMES if any(isinstance(row.get(column), int | float) for row in rows)]
    columns = ["name", "forward_id", *times, "unit"]
    return plain_table(columns, ([_time_cell(column, row) for column in columns] for row in rows))


def _time_cell(column: str, row: Mapping[str, Any]) -> object:
    value = row.get(column, "ms" if column == "unit" else "")
    is_time = column in _TIMES and isinstance(value, int | float)
    return f"{value:.{_DECIMALS_OF_TIMES}f}" if is_time else value


def cast_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """What a dtype cast did: name, target, action, config."""
    return _table_of(("name", "target", "action", "config"), rows)


def _table_of(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    return plain_table(columns, ([row.get(column, "") for column in columns] for row in rows))
