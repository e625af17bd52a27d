"""The names of cuda lead to dipu: ditorch's whole mapping."""

from __future__ import annotations

import os

from dicore.settings import declarations
from dlinfer.framework.lmdeploy.places import PlaceError
from dlinfer.settings import DEVICE

__all__ = ["install"]

_SETTING = declarations("_ditorch")["DITORCH_DEVICE"].name
_PACKAGE = "torch_dipu"


def install() -> None:
    """Start ditorch for dipu, unless the program has imported it before."""
    os.environ.setdefault(_SETTING, "dipu")
    import ditorch

    ditorch.enable()
    if not ditorch.framework.startswith(_PACKAGE):
        raise PlaceError(
            f"{DEVICE.name}=dipu cannot be followed: ditorch was started for {ditorch.framework} "
            f"({_SETTING}={os.environ[_SETTING]}). Set {_SETTING}=dipu, or unset it."
        )
