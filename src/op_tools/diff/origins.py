"""Finds the forward call that a call inside backward belongs to, where the log does not say: by the values they share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import torch

from op_tools.diff.pairing import Entry
from op_tools.diff.sequence import Recorded
from op_tools.reference.recompute import flat_results, flat_tensors
from op_tools.replay.closeness import identical
from op_tools.replay.items import Item
from op_tools.storage import CaptureError, load

__all__ = ["origin_of"]

_BACKWARD = re.compile(r"(_dense)?_backward(_data|_input|_weight)?")
_MOST_TRIED = 400


def origin_of(found: Entry, entries: Sequence[Entry]) -> Recorded | None:
    """The forward call of the same step whose inputs or outputs the backward call was given; None if none is found."""
    call = found.call
    if call.phase != "backward" or call.level != "aten" or call.place or call.folder is None:
        return None
    operator = call.name.split(".")[1] if call.name.count(".") else call.name
    base = _BACKWARD.sub("", operator)
    if base == operator:
        return None
    side = "a" if call is found.a else "b"
    before = [
        other
        for entry in entries
        if entry.rank == found.rank and (other := getattr(entry, side)) is not None
        if other.phase == "forward" and other.step == call.step and other.name.split(".")[1:2] == [base]
    ]
    given = _tensors(call, ("input",))
    for candidate in before[-_MOST_TRIED:]:
        if candidate.place and _share(given, _tensors(candidate, ("input", "output"))):
            return candidate
    return None


def _tensors(call: Recorded, parts: Iterable[str]) -> list[torch.Tensor]:
    if call.folder is None:
        return []
    item = Item(call.folder, call.prefix)
    try:
        loaded = [load(item.file(part)) for part in parts]
    except (CaptureError, OSError):
        return []
    found = [tensor for data in loaded for tensor in flat_tensors(flat_results(data["args"]), {})]
    return [tensor for tensor in found if tensor.numel() > 1]


def _share(mine: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return any(identical(left.detach(), right.detach()) for left in mine for right in other)
