"""Automatic mixed precision: autocast, GradScaler and the questions about their state."""

from __future__ import annotations

from typing import Any

import torch

from _ditorch.mapping.patches import Patches
from _ditorch.mapping.translation import Target, translate_first, translate_type

__all__ = ["apply"]

_BY_DEVICE_TYPE = ("get_autocast_dtype", "is_autocast_available", "set_autocast_dtype")


def apply(patches: Patches, target: Target) -> None:
    _constructors(patches, target)
    for name in ("custom_fwd", "custom_bwd"):
        wrapper = translate_type(getattr(torch.amp, name), target)
        patches.wrap(torch.amp.autocast_mode, wrapper, name, also=[torch.amp])
    _state(patches, target)


def _constructors(patches: Patches, target: Target) -> None:
    # The classes stay themselves and torch.cuda.amp's subclasses pass 'cuda' to these, so the one patch
    # serves all.
    autocast = torch.amp.autocast_mode.autocast
    patches.wrap(autocast, translate_first(autocast.__init__, target, keyword="device_type"), "__init__")
    scaler_init = torch.amp.GradScaler.__init__

    def init(self: torch.amp.GradScaler, device: Any = "cuda", *args: Any, **kwargs: Any) -> None:
        scaler_init(self, target.translate_type(device), *args, **kwargs)

    patches.wrap(torch.amp.GradScaler, init, "__init__")


def _state(patches: Patches, target: Target) -> None:
    for name in _BY_DEVICE_TYPE:
        for module in (torch, torch.amp):
            original = vars(module).get(name)
            if original is not None:
                patches.wrap(module, translate_type(original, target), name)
    is_enabled, set_enabled = torch.is_autocast_enabled, torch.set_autocast_enabled
    get_dtype, set_dtype = torch.get_autocast_dtype, torch.set_autocast_dtype
    own = target.device_type

    # Without a device type these four mean cuda.
    def is_autocast_enabled(device_type: str = own) -> bool:
        return is_enabled(target.translate_type(device_type))

    def set_autocast_enabled(*args: Any, **kwargs: Any) -> None:
        names = ("device_type", "enabled") if len(args) + len(kwargs) == 2 else ("enabled",)
        given = dict(zip(names, args, strict=False)) | kwargs
        set_enabled(target.translate_type(given.get("device_type", own)), given["enabled"])

    def get_autocast_gpu_dtype() -> torch.dtype:
        return get_dtype(own)

    def set_autocast_gpu_dtype(dtype: torch.dtype) -> None:
        set_dtype(own, dtype)

    for wrapper in (
        is_autocast_enabled,
        set_autocast_enabled,
        get_autocast_gpu_dtype,
        set_autocast_gpu_dtype,
    ):
        patches.wrap(torch, wrapper)
