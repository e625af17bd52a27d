"""`torch.backends.cuda`: settings that choose among cuda's libraries.

Most flags (`allow_tf32`, `benchmark`, `enable_flash_sdp`) live in torch itself and need nothing. The others
are kept by cuda's libraries, so that a build without them refuses to be asked. A device with its own
kernels has no such choice to make: it takes the wish, gives it back when asked, and computes as it does.
"""

from __future__ import annotations

from typing import Any

import torch

from _ditorch.mapping.patches import Patches
from _ditorch.mapping.translation import Target

__all__ = ["apply"]

_PLANS = 4096  # what torch documents as the limit to start with


def apply(patches: Patches, target: Target) -> None:
    # A cache of plans belongs to a device, and the one that is asked for is no longer cuda's.
    _plan_cache(patches, target)
    if torch.backends.cuda.is_built():
        return  # cuda's own libraries are there and keep the other settings, also without a card
    # torch._C is private, but torch's own functions above it check the arguments and word the errors.
    _preferences(patches)
    _workspaces(patches)


def _keep(patches: Patches, getter: str, setter: str, initial: Any) -> None:
    held = [initial]

    def get() -> Any:
        return held[0]

    def put(value: Any) -> None:
        held[0] = value

    patches.set(torch._C, getter, get)
    patches.set(torch._C, setter, put)


def _preferences(patches: Patches) -> None:
    for kind, values in (
        ("linalg", "_LinalgBackend"),
        ("blas", "_BlasBackend"),
        ("rocm_fa", "_ROCmFABackend"),
    ):
        choices = getattr(torch._C, values, None)
        if choices is not None:
            _keep(
                patches, f"_get_{kind}_preferred_backend", f"_set_{kind}_preferred_backend", choices.Default
            )


def _workspaces(patches: Patches) -> None:
    for library in ("Cublas", "CublasLt"):
        _keep(patches, f"_cuda_get{library}WorkspaceSize", f"_cuda_set{library}WorkspaceSize", 0)


def _plan_cache(patches: Patches, target: Target) -> None:
    limits: dict[int, int] = {}

    def put(device: int, limit: int) -> None:
        if limit < 0:
            raise RuntimeError(f"cufft_plan_cache.max_size must not be negative, got {limit}")
        limits[device] = limit

    cache = torch.backends.cuda.cuFFTPlanCache
    prop = torch.backends.cuda.cuFFTPlanCacheAttrContextProp
    # The kernels of another device make no plans of cuFFT's, so none is ever held.
    patches.set(cache, "size", prop(lambda device: 0, vars(cache)["size"].setter))
    patches.set(cache, "max_size", prop(lambda device: limits.get(device, _PLANS), put))
    patches.set(cache, "clear", lambda self: None)
