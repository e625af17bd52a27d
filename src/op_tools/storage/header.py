"""What every capture says about itself."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch

from op_tools.storage.call_info import FORMAT_VERSION, CallInfo, Kind, Part, host_name
from op_tools.storage.plain import plain
from op_tools.storage.snapshot import Snapshot


@cache
def _device_name(device: torch.device) -> str:
    return str(device)


@cache
def _circumstances(kind: Kind, process: int) -> dict[str, Any]:
    """The part of the header that is the same for all files of a process."""
    return {
        "format": FORMAT_VERSION,
        "store": kind,
        "host": host_name(),
        "pid": process,
        "torch": str(torch.__version__),
    }


def header_of(call: CallInfo, part: Part, kind: Kind, snapshots: list[Snapshot]) -> dict[str, Any]:
    """What every file says about itself; `devices` lists the tensors' devices in the order of the tensors."""
    header = {
        **_circumstances(kind, os.getpid()),
        "operator": call.name,
        "part": part,
        "forward_id": call.forward_id,
        "time": call.time,
        "rank": call.rank,
        "world_size": call.world_size,
        "step": call.step,
        "device": call.device,
        "devices": tuple([_device_name(snapshot.device) for snapshot in snapshots]),
        "call_site": call.call_site,
    }
    if call.extra:
        header["extra"] = plain(call.extra, tensor=lambda _: None)
    return header
