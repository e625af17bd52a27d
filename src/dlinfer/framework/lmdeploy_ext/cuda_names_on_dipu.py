"""The names of cuda lead to dipu: ditorch's whole mapping."""

from __future__ import annotations

import os

__all__ = ["install"]


def install() -> None:
    """Start ditorch for dipu, unless the program has imported it before."""
    os.environ.setdefault("DITORCH_DEVICE", "dipu")
    import ditorch

    ditorch.enable()
