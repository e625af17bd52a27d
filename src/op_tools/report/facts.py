"""What is looked at in every row of a log, read without making the rest of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from op_tools.storage.csv_reader import CsvReader
from op_tools.storage.log_reader import LogReader, decoded

__all__ = ["RowFacts", "facts_of"]

_MOST = 1 << 40


class RowFacts(msgspec.Struct, gc=False):
    """What is looked at in every row. Logs may come from elsewhere: anything may be of any type."""

    name: Any = None
    verdict: Any = None
    step: Any = None
    rank: Any = None
    pid: Any = None
    status: Any = None
    kind: Any = None
    error_info: Any = None
    error_over_bound: Any = None
    max_abs_diff: Any = None
    forward_elasped: Any = None
    backward_elasped: Any = None
    call_site: Any = None
    input: Any = None
    count: Any = None

    @property
    def stands_for(self) -> int:
        """How many rows this one stands for: a tool that runs for weeks does not write all that are alike."""
        return self.count if type(self.count) is int and 1 < self.count < _MOST else 1


def facts_of(reader: LogReader | CsvReader) -> Iterator[tuple[bytes | dict[str, Any], RowFacts]]:
    """What is looked at of each row, and the row as the log has it."""
    if isinstance(reader, CsvReader):
        for row in reader.rows():
            yield row, _facts_in(row)
        return
    decode = msgspec.msgpack.Decoder(RowFacts).decode
    for payload in reader:
        try:
            yield payload, decode(payload)
        except (msgspec.DecodeError, RecursionError):  # a key that is no text, or no row
            found = decoded(payload)
            if found is None:
                reader.drop(payload)
            else:
                yield payload, _facts_in(found)


def _facts_in(row: Mapping[str, Any]) -> RowFacts:
    return RowFacts(*map(row.get, RowFacts.__struct_fields__))
