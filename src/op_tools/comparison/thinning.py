"""Rows of a tool that runs for weeks: all of the first ones, then few that say how many they stand for."""

from __future__ import annotations

from typing import Any

__all__ = ["Thinned"]

# Of each operator and verdict so many rows are kept, and then one in as many, and each that shows a larger error.
_WHOLE = 100


class Thinned:
    """Counts the rows of each operator and verdict. A row that is kept has the `count` of those since the one before."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Any], int] = {}
        self._waiting: dict[tuple[str, Any], tuple[int, dict[str, Any]]] = {}
        self._largest: dict[tuple[str, Any], float] = {}

    def rows(self, operator: str, row: dict[str, Any]) -> list[dict[str, Any]]:
        """The row if it is kept."""
        key = (operator, row.get("verdict"))
        seen = self._seen[key] = self._seen.get(key, 0) + 1
        waiting = self._waiting.pop(key, (0, row))[0] + 1
        error = row.get("error_over_bound")
        is_larger = isinstance(error, float) and error > self._largest.get(key, 0.0)
        if isinstance(error, float) and is_larger:
            self._largest[key] = error
        if seen <= _WHOLE or seen % _WHOLE == 0 or is_larger:
            return [{**row, "count": waiting}]
        self._waiting[key] = (waiting, row)
        return []

    def rest(self) -> list[dict[str, Any]]:
        """At the end: the last rows, for those that no row stands for yet."""
        waiting, self._waiting = self._waiting, {}
        return [{**row, "count": count} for count, row in waiting.values()]
