"""Reads what the tools print: the bordered tables, and lines with everything that differs between runs masked."""

from __future__ import annotations

import dataclasses
import re

# Columns as the product documents show them.
CAPTURED = ("name", "device", "dtype", "numel", "shape", "stride", "requires_grad", "layout", "data_ptr")
FACTS = ("name", "shape", "stride", "numel", "dtype", "device", "requires_grad", "layout", "data_ptr")
COMPARED = ("name", "allclose", "max_abs_diff", "max_relative_diff", "atol", "rtol", "error_info")
CAST = ("name", "target", "action", "config")

STAMP = r"\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d"
SITE = r"\S+\.py:\d+ \w+: "


@dataclasses.dataclass
class Table:
    """One bordered table: its columns, its rows by column, and the lines it was printed in."""

    columns: tuple[str, ...]
    rows: list[dict[str, str]]
    lines: list[str]

    @property
    def names(self) -> list[str]:
        return [row["name"] for row in self.rows]

    def __getitem__(self, name: str) -> dict[str, str]:
        return next(row for row in self.rows if row["name"] == name)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def tables(text: str) -> list[Table]:
    """All tables in the order they were printed; each must be closed and of one width."""
    found: list[Table] = []
    lines = text.splitlines()
    place = 0
    while place < len(lines):
        if not lines[place].startswith("+-"):
            place += 1
            continue
        end = place + 3
        while lines[end].startswith("|"):
            end += 1
        block = lines[place : end + 1]
        assert block[0] == block[2] == block[-1], "a table has three equal borders"
        assert len({len(line) for line in block}) == 1, "and lines of one length"
        columns = tuple(_cells(block[1]))
        rows = [dict(zip(columns, _cells(line), strict=True)) for line in block[3:-1]]
        found.append(Table(columns, rows, block))
        place = end + 1
    return found


def after(text: str, line: str, count: int = 1) -> list[Table]:
    """The tables that follow the first line that matches a pattern."""
    match = re.search(rf"^{line}$", text, re.M)
    assert match is not None, f"no line {line!r} in\n{text}"
    return tables(text[match.end() :])[:count]


def with_rows(text: str, columns: tuple[str, ...], *names: str) -> Table:
    """The first table that has these columns and these rows, in this order."""
    for table in tables(text):
        if table.columns == columns and table.names == list(names):
            return table
    seen = "\n".join(f"{table.columns}: {table.names}" for table in tables(text))
    raise AssertionError(f"no table with rows {names}; there are\n{seen}")


def in_order(text: str, *lines: str) -> None:
    """Each pattern matches a whole line, one after the other; other lines may stand between them."""
    place = 0
    for line in lines:
        match = re.compile(rf"^{line}$", re.M).search(text, place)
        assert match is not None, f"no line {line!r} after\n{text[:place][-600:]}\nin\n{text[place:][:2000]}"
        place = match.end()


def masked(text: str) -> str:
    """The text with process, time, call number, source line and addresses taken out."""
    text = re.sub(STAMP, "TIME", text)
    text = re.sub(r"(results/[\w.]+/)\d+/\d+/", r"\1PID/ID/", text)
    text = re.sub(r"pid\d+", "pidPID", text)
    text = re.sub(r"forward_id: ?\d+", "forward_id ID", text)
    text = re.sub(r"\.py:\d+ ", ".py:LINE ", text)
    text = re.sub(r"\b\d{9,}\b *", "ADDRESS ", text)
    text = re.sub(r" *\b\d+\.\d{8}\b *", " MS ", text)
    text = re.sub(r"(\| +)\d+( +\| MS)", r"\1ID\2", text)
    return re.sub(r" +|-{2,}", " ", text)
