"""Which device is meant: an index, a name, a torch.device, or none for the current one."""

from __future__ import annotations

import torch

from torch_dipu import _C

Place = int | str | torch.device | None


def index_of(place: Place = None) -> int:
    """The index of a device of this type; ValueError for a device of another type."""
    if place is None:
        return _C.current_device()
    if isinstance(place, int):
        return place
    named = torch.device(place)
    if named.type != "dipu":
        raise ValueError(
            f"expected a dipu device, got {str(place)!r}; write dipu, dipu:0, an index, or nothing for the current one"
        )
    return _C.current_device() if named.index is None else named.index
