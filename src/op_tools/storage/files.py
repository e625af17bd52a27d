"""The store "files": every .pth is complete in itself; and what a file of either store says about itself."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import msgspec
import torch

from op_tools.storage.call_info import FORMAT_VERSION, PARTS, RESULTS, CallInfo, Kind, Part, host_name
from op_tools.storage.container import container
from op_tools.storage.disk import Bytes, FileTree
from op_tools.storage.plain import plain
from op_tools.storage.snapshot import TAG, Snapshot


@dataclass(slots=True)
class CapturedPart:
    """One part of one call on its way to the disk."""

    folder: str  # below op_capture_results
    part: Part
    header: dict[str, Any]
    args: Any  # plain trees with Snapshots (files) or references (blobs) as leaves
    kwargs: Any
    snapshots: list[Snapshot]  # every one in the trees, to be released when written
    # Of the .pth.json and the .pth, once they are made.
    contents: tuple[list[Bytes], list[Bytes]] | None = None

    @property
    def relative_path(self) -> str:
        return f"{RESULTS}/{self.folder}/{self.part}.pth"

    def tree(self) -> dict[str, Any]:
        return {"args": self.args, "kwargs": self.kwargs, TAG: self.header}

    def description(self) -> bytes:
        """The .pth.json: the header, then every value by shape, dtype and so on."""
        return described({**self.header, "args": self.args, "kwargs": self.kwargs})


@cache
def _circumstances(kind: Kind, process: int) -> dict[str, Any]:
    """The part of the header that is the same for all files of a process."""
    versions = {"format": FORMAT_VERSION, "store": kind, "torch": str(torch.__version__)}
    return {**versions, "host": host_name(), "pid": process}


_device_name = cache(str)


def header_of(call: CallInfo, part: Part, kind: Kind, snapshots: list[Snapshot]) -> dict[str, Any]:
    """`devices` lists the tensors' devices in the order of the tensors."""
    header = {
        **_circumstances(kind, os.getpid()),
        "operator": call.name,
        "part": part,
        "parts": tuple([known for known in PARTS if known == part or known in call.parts]),
        "forward_id": call.forward_id,
        "order": call.order,
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


def described(tree: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(tree, enc_hook=_described_value)
    except Exception as error:  # a key or value JSON has no word for; the .pth itself is not touched by this
        return msgspec.json.encode({"operator": str(tree.get("operator")), "not_described": str(error)[:200]})


def _described_value(value: Any) -> Any:
    if type(value) is Snapshot:
        return value.description()
    if isinstance(value, tuple):
        return list(value)
    return str(value)


@lru_cache(maxsize=4096)
def safe_name(name: str) -> str:
    """A name as one component of a path: no separators, no leading dot, not too long, and not our own folder."""
    clean = re.sub(r"[^A-Za-z0-9_.+-]", "_", name[:150]).lstrip(".") or "_"
    return "_blobs" if clean == "blobs" else clean


class FilesBackend:
    """Writes each job as a complete .pth beside its .pth.json."""

    kind = "files"
    two_stages = True  # as much work for the processor as for the disk

    def __init__(self, root: str, release: Callable[[Snapshot], None]) -> None:
        self._tree = FileTree(root)
        self._release = release

    def take(self, snapshot: Snapshot) -> tuple[Any, int]:
        """On the caller's thread: what stands for the tensor in the tree, and its share of the queue in bytes."""
        return snapshot, snapshot.nbytes

    def prepare(self, job: CapturedPart) -> None:
        """On the first thread: all that takes a processor (the pickle, the checksums), while the disk works."""
        job.contents = [job.description()], container(job.tree())

    def write(self, job: CapturedPart) -> int:
        """On the second thread."""
        if job.contents is None:
            self.prepare(job)
        assert job.contents is not None
        description, pieces = job.contents
        return self._tree.write_described(job.relative_path, description, pieces)

    def release(self, job: CapturedPart) -> None:
        for snapshot in job.snapshots:
            self._release(snapshot)

    def after_fork(self) -> None:
        """In a child: nothing here belongs to the parent."""

    def close(self) -> None:
        self._tree.close()
