"""The figures of the allocator as a table, in the shape of torch.cuda's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["table"]

_SIZES = {
    "allocated_bytes": "held by tensors",
    "active_bytes": "held or awaited",
    "requested_bytes": "asked for",
    "reserved_bytes": "taken from the device",
    "inactive_split_bytes": "free between blocks",
}
_COUNTS = {
    "allocation": "blocks held",
    "active": "blocks held or awaited",
    "segment": "segments",
    "inactive_split": "free between blocks",
}
_COLUMNS = {"current": "now", "peak": "peak", "allocated": "in all", "freed": "freed"}
_POOLS = {"all": "", "large_pool": "  large pool", "small_pool": "  small pool"}
_FIRST, _OTHER = 24, 16


def table(stats: Mapping[str, Any], memory: tuple[int, int], title: str, abbreviated: bool) -> str:
    """`stats` as memory_stats gives them; `memory`: free and total bytes of the device."""
    free, total = memory
    rule = "|" + "|".join("-" * (width + 2) for width in (_FIRST, *[_OTHER] * 4)) + "|"
    lines = [_row(f"memory of {title}", [*_COLUMNS.values()]), rule]
    for metrics, write in ((_SIZES, _mebibytes), (_COUNTS, str)):
        for metric, name in metrics.items():
            for pool, indented in _POOLS.items():
                if abbreviated and pool != "all":
                    continue
                figures = [write(stats[f"{metric}.{pool}.{column}"]) for column in _COLUMNS]
                lines.append(_row(indented or name, figures))
        lines.append(rule)
    lines.append(_row("free on the device", [_mebibytes(free), "", "", ""]))
    lines.append(_row("total on the device", [_mebibytes(total), "", "", ""]))
    lines.append(_row("out of memory", [str(stats["num_ooms"]), "", "", ""]))
    lines.append(_row("retries after a full one", [str(stats["num_alloc_retries"]), "", "", ""]))
    return "\n".join(lines)


def _row(name: str, figures: list[str]) -> str:
    return f"| {name:<{_FIRST}} | " + " | ".join(f"{figure:>{_OTHER}}" for figure in figures) + " |"


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.2f} MiB"
