"""Replays many calls: one after the other here, or in processes of their own or on a Ray cluster, where a crash costs only
its call."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from dicore.executors import run_payloads
from op_tools.captured.load import Item
from op_tools.replay.report import ItemReport, Options
from op_tools.replay.run import replay_item

__all__ = ["replay"]

_FUNCTION = "op_tools.replay.worker:replay_payload"


def replay(
    items: Sequence[Item],
    options: Options | None = None,
    *,
    workers: int = 0,
    timeout: float = 600.0,
    ray: str | None = None,
) -> Iterator[tuple[int, ItemReport]]:
    """Reports as they come in, with the index of their item.

    With `workers` processes an item that crashes or hangs is reported and the others go on; with none, everything
    runs in this process, which is what a debugger wants. `ray` names a cluster to run on, see dicore.executors.
    """
    options = options or Options()
    first_ids = [1 + index * options.run_times for index in range(len(items))]
    if workers == 0 and ray is None:
        for index, item in enumerate(items):
            yield index, replay_item(item, options, first_ids[index])
        return
    common = {"options": asdict(options)}
    payloads: list[tuple[dict[str, Any], int]] = [
        (
            {"folder": str(item.folder), "prefix": item.prefix, "first_id": first_id, **common},
            _bytes_of(item) if ray is not None else 0,
        )
        for item, first_id in zip(items, first_ids, strict=True)
    ]
    needs = _common_folder(items) if ray is not None else ()
    for index, result in run_payloads(
        _FUNCTION, payloads, workers=workers, ray=ray, timeout=timeout, needs=needs
    ):
        if "error" in result:
            yield index, ItemReport(items[index].label, status="error", reason=result["error"])
        else:
            yield index, ItemReport(**result)


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
