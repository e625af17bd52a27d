"""Replays many calls at once: in processes of their own or on a Ray cluster, where a crash costs only its call."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from dicore.executors import ExecutorError, WorkerStartError, run_payloads
from op_tools.captured.load import Item
from op_tools.replay.report import ItemReport, Options

__all__ = ["ExecutorError", "WorkerStartError", "replay_in_workers"]

_FUNCTION = "op_tools.replay.worker:replay_payload"


def replay_in_workers(
    items: Sequence[Item], options: Options, *, workers: int, timeout: float, ray: str | None = None
) -> Iterator[tuple[int, ItemReport]]:
    """Reports with the index of their item, in the order they come in."""
    plain = options.as_dict()
    payloads: list[tuple[dict[str, Any], int]] = []
    for index, item in enumerate(items):
        payload = {
            "folder": str(item.folder),
            "prefix": item.prefix,
            "first_id": 1 + index * options.run_times,
            "options": plain,
        }
        payloads.append((payload, _bytes_of(item) if ray is not None else 0))
    needs = _common_folder(items) if ray is not None else ()
    for index, result in run_payloads(
        _FUNCTION, payloads, workers=workers, ray=ray, timeout=timeout, needs=needs
    ):
        yield index, _report(items[index], result)


def _bytes_of(item: Item) -> int:
    """The size of its files; what they refer to in a store of blobs is not counted."""
    with contextlib.suppress(OSError), os.scandir(item.folder) as entries:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in entries if entry.is_file())
    return 0


def _common_folder(items: Sequence[Item]) -> tuple[str, ...]:
    try:
        return (os.path.commonpath([str(item.folder) for item in items]),)
    except ValueError:  # none at all, or relative and absolute paths together
        return ()


def _report(item: Item, result: dict[str, Any]) -> ItemReport:
    if "error" in result:
        return ItemReport(item.label, status="error", reason=result["error"])
    return ItemReport.from_dict(result)
