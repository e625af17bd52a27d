"""Where the tests of the backend `tritongraph` can run."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

__all__ = ["triton_device"]


def triton_device() -> str | None:
    """`cpu` where Triton's kernels are interpreted, `cuda` where there is a GPU; None: triton is not installed, or cannot run."""
    if find_spec("triton") is None:
        return None
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "cpu"
    return "cuda" if torch.cuda.is_available() else None
