"""Whether triton is here, and what it can launch on."""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch

from dicp.errors import DicpError

__all__ = ["INTERPRETED", "launch_device_types", "require_triton", "triton_problem", "triton_version"]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Kernels run on the CPU, slowly, as Triton's interpreter does it."""
MISSING = (
    "tritongraph needs triton, which is not installed: pip install triton==3.6.0 (PyTorch's packages for CUDA bring it along)."
    " For the processor there is the backend hostgraph."
)


def require_triton() -> None:
    """Raises DicpError where there is no triton."""
    if find_spec("triton") is None:
        raise DicpError(MISSING)


@cache
def launch_device_types() -> frozenset[str]:
    """The types of devices whose tensors kernels can be launched on."""
    require_triton()
    if INTERPRETED:
        return frozenset({"cpu"})
    from triton.runtime import driver  # type: ignore[import-not-found]

    try:
        device: torch.device = driver.active.get_active_torch_device()
    except RuntimeError:  # no driver: there is no GPU
        return frozenset()
    return frozenset({device.type})


def triton_version() -> str:
    """Empty: it is not installed."""
    try:
        return version("triton")
    except PackageNotFoundError:
        return ""


def triton_problem() -> str:
    """Why kernels cannot run; empty: they can."""
    if find_spec("triton") is None:
        return MISSING
    if not launch_device_types():
        return "triton finds no GPU (TRITON_INTERPRET=1 runs kernels on the CPU, slowly)"
    return ""
