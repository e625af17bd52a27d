"""One captured call as a task for another process: plain data in, plain data out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

# PyTorch loads it at the first call below a dispatch mode, which takes seconds; here no call's time limit pays for it.
import torch._dynamo  # noqa: F401

from op_tools.captured.load import Item
from op_tools.replay.report import Options
from op_tools.replay.run import replay_item

__all__ = ["replay_payload"]


def replay_payload(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Replay the call that `op_tools.replay.pool` wrote down, with the same refusals as anywhere else."""
    item = Item(Path(payload["folder"]), payload["prefix"])
    return asdict(replay_item(item, msgspec.convert(payload["options"], Options), payload["first_id"]))
