"""Rows of many logs as columns: texts once in a dictionary, numbers rounded, gzip over all of it.

A hundred thousand rows of a run share a few hundred operators, source lines and shapes; written so they take a few
megabytes and a page reads them in a fraction of a second.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping
from itertools import chain, takewhile
from typing import Any

from op_tools.report.rows import is_internal

__all__ = ["NUMBERS", "Block", "RowTable"]

# A number beyond these digits is noise to a reader and incompressible to gzip.
_DIGITS = 7
# What one text may take. A source line or an error text of a person is far below.
LONGEST_TEXT = 20_000

NUMBERS = frozenset(
    {
        "forward_id", "step", "rank", "pid", "max_abs_diff", "max_relative_diff", "cosine_similarity",
        "error_over_bound", "atol", "rtol", "forward_elasped", "backward_elasped", "count",
    }
)  # fmt: skip
# Known of the log already, or of no use to a reader.
_LEFT_OUT = frozenset(
    {
        "thread", "world_size", "host", "started", "unit", "start_us", "backward_start_us", "name", "folder",
        "folder_a", "folder_b",
    }
)  # fmt: skip
_NOT_APPLICABLE = frozenset({"error_over_bound"})

# Rows that wait until their columns are made.
_AT_ONCE = 5000

Number = float | int | str | None


class _Texts:
    """Texts by number; 0 is the empty one."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {"": 0}

    def code(self, value: Any) -> int:
        text = value if isinstance(value, str) else _text(value)
        code = self.codes.get(text)
        if code is None:
            if len(text) > LONGEST_TEXT:
                return self.code(f"{text[: LONGEST_TEXT - 100]} ... ({len(text)} characters)")
            code = self.codes[text] = len(self.codes)
        return code


def _text(value: Any) -> str:
    if value is None or value in ([], {}):
        return ""
    return str(value) if not isinstance(value, list | dict) else json.dumps(value, default=str)


def number(name: str, value: Any) -> Number:
    """A number as JSON holds it; NaN and the infinities as text, None where there is none."""
    if type(value) is float and -math.inf < value < math.inf:
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, int):  # a bool too
        return int(value)
    try:
        value = float(value)
    except (TypeError, ValueError):
        return None
    if math.isnan(value):
        return None if name in _NOT_APPLICABLE else "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return number(name, value)


class Block:
    """The rows of one tool. Columns appear with the first row that has them."""

    def __init__(self, tool: str, texts: _Texts) -> None:
        self.tool = tool
        self.count = 0
        self.numbers: dict[str, list[Number]] = {}
        self.codes: dict[str, list[int]] = {}
        self._texts = texts
        self._waiting: list[Mapping[str, Any]] = []

    def append(self, row: Mapping[str, Any]) -> int:
        """Add a row, which is not copied; its index in the block."""
        self._waiting.append(row)
        self.count += 1
        if len(self._waiting) >= _AT_ONCE:
            self._encode()
        return self.count - 1

    def _encode(self) -> None:
        """Column by column, which takes half the time of row by row."""
        rows, self._waiting = self._waiting, []
        start = self.count - len(rows)
        for name in dict.fromkeys(chain.from_iterable(rows)):
            if name in _LEFT_OUT:
                continue
            values = [row.get(name) for row in rows]
            if name in NUMBERS:
                numbers = [None if value is None else number(name, value) for value in values]
                _extend(self.numbers, name, numbers, start, None)
            else:
                code, codes_of = self._texts.code, self._texts.codes
                codes = [codes_of.get(v) or code(v) if type(v) is str else code(v) for v in values]
                _extend(self.codes, name, codes, start, 0)

    def as_plain(self) -> dict[str, Any]:
        """The columns; those shorter than the block are empty behind their end."""
        self._encode()
        return {"tool": self.tool, "count": self.count, "numbers": self.numbers, "texts": self.codes}


def _extend(columns: dict[str, list[Any]], name: str, values: list[Any], start: int, empty: Any) -> None:
    if all(value is empty for value in values):
        return
    column = columns.setdefault(name, [])
    column += [empty] * (start - len(column))
    column += values


class RowTable:
    """The rows of all tools, one block a tool."""

    def __init__(self) -> None:
        self._texts = _Texts()
        self.blocks: dict[str, Block] = {}

    def __len__(self) -> int:
        return sum(block.count for block in self.blocks.values())

    def block(self, tool: str) -> Block:
        """The block of a tool, made if there is none yet."""
        if tool not in self.blocks:
            self.blocks[tool] = Block(tool, self._texts)
        return self.blocks[tool]

    def row_number(self, tool: str, index: int) -> int:
        """The number of a row in the whole table, from its index in the block of its tool."""
        earlier = takewhile(lambda name: name != tool, self.blocks)
        return sum(self.blocks[name].count for name in earlier) + index

    def packed(self) -> str:
        """Everything as JSON, compressed, in base64: text that a page may hold."""
        # The blocks first: encoding them makes the texts complete.
        blocks = [block.as_plain() for block in self.blocks.values() if block.count]
        names = {code for block in blocks for code in block["texts"].get("operator", ())}
        internal = [code for text, code in self._texts.codes.items() if code in names and is_internal(text)]
        document = {"texts": list(self._texts.codes), "blocks": blocks, "internal": internal}
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        # No time stamp: the same rows give the same file.
        packed = gzip.compress(text.encode("utf-8", "replace"), compresslevel=6, mtime=0)
        return base64.b64encode(packed).decode("ascii")
