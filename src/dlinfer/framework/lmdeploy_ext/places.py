"""Where the engine's tensors live: the setting DLINFER_DEVICE."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from importlib.util import find_spec

import torch

__all__ = ["VARIABLE", "Place", "PlaceError", "chosen_place"]

VARIABLE = "DLINFER_DEVICE"


class Place(Enum):
    """A kind of device, by the name that torch has for it."""

    CPU = "cpu"
    DIPU = "dipu"
    CUDA = "cuda"


class PlaceError(RuntimeError):
    """DLINFER_DEVICE cannot be followed: what was wrong, what was expected, what to do."""


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
