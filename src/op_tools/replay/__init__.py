"""Runs captured calls again, each by itself, and compares: with a reference, and with what was captured.

for index, report in replay(find_items("op_tools_results"), Options(device="cuda")):
    print(report.item, report.status, report.reason)
"""

from __future__ import annotations

from dicore.executors import ExecutorError, WorkerStartError
from op_tools.captured.load import Item, find_items
from op_tools.replay.pool import replay
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
