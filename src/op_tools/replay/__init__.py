"""Runs captured calls again, each by itself, and compares: with a reference, and with what was captured.

for index, report in replay(find_items("op_tools_results"), Options(device="cuda")):
    print(report.item, report.status, report.reason)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from op_tools.captured.load import Item, find_items
from op_tools.replay.pool import ExecutorError, WorkerStartError, replay_in_workers
from op_tools.replay.report import ItemReport, Options
from op_tools.replay.run import replay_item

__all__ = [
    "ExecutorError",
    "Item",
    "ItemReport",
    "Options",
    "WorkerStartError",
    "find_items",
    "replay",
    "replay_item",
]


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
    if workers > 0 or ray is not None:
        yield from replay_in_workers(items, options, workers=workers, timeout=timeout, ray=ray)
        return
    for index, item in enumerate(items):
        yield index, replay_item(item, options, 1 + index * options.run_times)
