"""What the caller tells the store about a call, what it may cost, and what came of it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Container, Hashable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

Part = Literal["input", "output", "grad_inputs", "grad_outputs"]
Kind = Literal["files", "blobs"]
PARTS: tuple[Part, ...] = ("input", "output", "grad_inputs", "grad_outputs")

FORMAT_VERSION = 1
RESULTS = "op_capture_results"
INCOMING = f"{RESULTS}/.incoming"  # files that are not complete yet


@dataclass(slots=True)
class CallInfo:
    """One operator call: decides the folder of its files and fills their header.

    The same object is passed to every `put` of the call; the store notes in it whether the call was admitted,
    so that a call is captured whole or not at all.
    """

    name: str  # 'torch.Tensor.add', 'aten.add.Tensor'
    forward_id: int
    time: str = field(default_factory=lambda: time.strftime("%Y-%m-%d-%H-%M-%S"))
    rank: int = 0
    world_size: int = 1
    step: int | None = None
    device: str = ""
    call_site: str = ""
    # Calls with equal signatures count against Limits.calls_per_signature; None: the operator's name is used.
    signature: Hashable = None
    # The two extra folders of '<op>/<pid>/autocompare/<id>/<time>/device/': above the id and below the time.
    purpose: str = ""
    side: str = ""
    # Anything else worth keeping in the header (RNG policy, module path, autocast): plain data only.
    extra: dict[str, Any] = field(default_factory=dict)
    # What is to be saved of the call, as far as known: who reads its files misses what is not there.
    parts: tuple[Part, ...] = ()
    admitted: bool | None = None
    # Given by the store: the folder below op_capture_results, without the side, and which call of the process it is.
    folder: str = ""
    order: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a run may capture. None means no limit; reaching one is reported once and never raises."""

    total_bytes: int | None = (
        None  # of tensors written by this process; in the store "blobs" each content once
    )
    calls_per_signature: int | None = None
    steps: Container[int] | None = None  # a range, a set: calls of other steps are left out
    ranks: Container[int] | None = None
    # The queue of the background writer: put() waits while it is full.
    queue_bytes: int = 1 << 30
    queue_items: int = 8192


@dataclass(slots=True)
class Stats:
    """What a store has done so far. `complete` is False once anything that was asked for is missing."""

    calls: int = 0
    files: int = 0  # .pth files complete under their final names
    raw_bytes: int = 0  # tensor bytes handed to put()
    written_bytes: int = 0  # tensor bytes that reached the disk
    left_out: int = 0  # calls outside the limits: as asked, so the run is still complete
    dropped: int = 0  # parts lost to an error, to the byte limit, or put after close()
    waits: int = 0  # how often put() had to wait for the writer
    wait_seconds: float = 0.0
    complete: bool = True
    reason: str = ""


@cache
def host_name() -> str:
    """This machine's name as part of a path."""
    return "".join(c if c.isalnum() or c in "-." else "-" for c in socket.gethostname()) or "host"


def process_label(rank: int, world_size: int) -> str:
    """The folder of one process: its pid, and in multi-rank runs rank and host before it."""
    return f"rank{rank}_{host_name()}_{os.getpid()}" if world_size > 1 else str(os.getpid())
