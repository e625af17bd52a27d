"""Where LMDeploy's tensors live, and how much of the CPU's memory they may take: DLINFER_DEVICE, DLINFER_CPU_MEMORY."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from importlib.util import find_spec

import torch

__all__ = ["MEMORY", "VARIABLE", "Place", "PlaceError", "chosen_place", "cpu_memory"]

VARIABLE = "DLINFER_DEVICE"
MEMORY = "DLINFER_CPU_MEMORY"
_GIB = 1 << 30
_DEFAULT_GIB = "4"


class Place(Enum):
    """A kind of device, by the name that torch has for it."""

    CPU = "cpu"
    DIPU = "dipu"
    CUDA = "cuda"


class PlaceError(RuntimeError):
    """A setting cannot be followed: what was wrong, what was expected, what to do."""


def chosen_place(environment: Mapping[str, str] = os.environ) -> Place:
    """What DLINFER_DEVICE names; without it cuda where there is one, else the CPU."""
    wanted = environment.get(VARIABLE, "").strip().lower()
    if not wanted:
        return Place.CUDA if torch.cuda.is_available() else Place.CPU
    known = ", ".join(place.value for place in Place)
    try:
        place = Place(wanted)
    except ValueError:
        raise PlaceError(
            f"{VARIABLE}={wanted!r} is no place for tensors. Expected one of: {known}. "
            f"Set {VARIABLE} to one of these, or unset it to let dlinfer choose."
        ) from None
    missing = _missing(place)
    if missing:
        raise PlaceError(
            f"{VARIABLE}={wanted} cannot be used: {missing}. Unset {VARIABLE} to let dlinfer choose."
        )
    return place


def _missing(place: Place) -> str:
    """What keeps a place from being used; empty if nothing does."""
    if place is Place.CUDA and not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no cuda device"
    if place is Place.DIPU and find_spec("torch_dipu") is None:
        return "the package torch_dipu is not installed"
    return ""


def cpu_memory() -> int:
    """DLINFER_CPU_MEMORY in bytes."""
    wanted = os.environ.get(MEMORY, "").strip() or _DEFAULT_GIB
    try:
        bytes_ = int(float(wanted) * _GIB)
    except (ValueError, OverflowError):
        bytes_ = 0
    if bytes_ <= 0:
        raise PlaceError(
            f"{MEMORY}={wanted!r} is no amount of memory. Expected GiB as a number above 0, such as 4 or 0.5. "
            f"Set it so, or unset it for {_DEFAULT_GIB}."
        )
    return bytes_
