"""Where LMDeploy's tensors live, and how much of the CPU's memory they may take: DLINFER_DEVICE, DLINFER_CPU_MEMORY."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from importlib.util import find_spec

import torch

from dlinfer.settings import CPU_MEMORY, DEVICE

__all__ = ["Place", "PlaceError", "chosen_place", "cpu_memory"]

_GIB = 1 << 30


class Place(Enum):
    """A kind of device, by the name that torch has for it."""

    CPU = "cpu"
    DIPU = "dipu"
    CUDA = "cuda"


class PlaceError(RuntimeError):
    """A setting cannot be followed: what was wrong, what was expected, what to do."""


def chosen_place(environment: Mapping[str, str] = os.environ) -> Place:
    """What DLINFER_DEVICE names; without it cuda where there is one, else the CPU."""
    wanted = DEVICE.get(environment)
    if not wanted:
        return Place.CUDA if torch.cuda.is_available() else Place.CPU
    place = Place(wanted)
    missing = _missing(place)
    if missing:
        raise PlaceError(
            f"{DEVICE.name}={wanted} cannot be used: {missing}. Unset {DEVICE.name} to let dlinfer choose."
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
    return int(CPU_MEMORY.get() * _GIB)
