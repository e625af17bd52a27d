"""The vendor `triton`: kernels for CUDA devices, written in Triton.

They never read or write outside of their tensors, whatever block tables, lengths and indices hold: a bad one gives NaN, or is
left out. So values are looked at where that is cheap only. With TRITON_INTERPRET=1 the kernels run, slowly, on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch

from dlinfer.interface.declaration import Kernel
from dlinfer.vendors.dispatch import Vendor

__all__ = ["VENDOR"]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def _kernels() -> Mapping[str, Kernel]:
    if find_spec("triton") is None:
        return {}
    # Each registers its kernels.
    from dlinfer.vendors.triton import attention, cache, layers, matmul, matmul_weight_only, moe  # noqa: F401
    from dlinfer.vendors.triton.launching import kernel

    return kernel


def _version() -> str:
    try:
        return f"triton {version('triton')}"
    except PackageNotFoundError:
        return ""


def _problem() -> str | None:
    if find_spec("triton") is None:
        return "triton is not installed: pip install triton"
    if not INTERPRETED and not torch.cuda.is_available():
        return "torch sees no CUDA device (TRITON_INTERPRET=1 runs the kernels on the CPU, slowly)"
    return None


VENDOR = Vendor(
    name="triton",
    version=_version(),
    kernels=_kernels(),
    devices=("cpu", "cuda") if INTERPRETED else ("cuda",),
    # Interpreted kernels are for looking at them: they serve only who names the vendor.
    priority=-2000 if INTERPRETED else 100,
    values="cheap",
    problem=_problem,
)
