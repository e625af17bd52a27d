"""Automatic mixed precision: autocast, GradScaler and the questions about their state."""

from __future__ import annotations

from typing import Any

import torch

from _ditorch.mapping.patches import Patches
from _ditorch.mapping.translation import Target, disguise, translate_first, translate_type

__all__ = ["apply"]

_BY_DEVICE_TYPE = (
    "get_autocast_dtype",
    "is_autocast_available",
    "set_autocast_dtype",
)


def apply(patches: Patches, target: Target) -> None:
    _constructors(patches, target)
    _autograd_functions(patches, target)
    _state(patches, target)


def _constructors(patches: Patches, target: Target) -> None:
    # The classes stay themselves and torch.cuda.amp's subclasses pass 'cuda' to these, so the one patch
    # serves all.
    autocast_init = torch.amp.autocast_mode.autocast.__init__
    wrapper = translate_first(autocast_init, target, keyword="device_type")
    patches.set(
        torch.amp.autocast_mode.autocast,
        "__init__",
        disguise(wrapper, autocast_init, "torch.amp.autocast_mode", "autocast.__init__"),
    )
    scaler_init = torch.amp.GradScaler.__init__

    def init(self: torch.amp.GradScaler, device: Any = "cuda", *args: Any, **kwargs: Any) -> None:
        scaler_init(self, target.translate_type(device), *args, **kwargs)

    patches.set(
        torch.amp.GradScaler,
        "__init__",
        disguise(init, scaler_init, "torch.amp.grad_scaler", "GradScaler.__init__"),
    )


def _autograd_functions(patches: Patches, target: Target) -> None:
    for name in ("custom_fwd", "custom_bwd"):
        original = getattr(torch.amp, name)
        wrapper = disguise(
            translate_type(original, target), original, "torch.amp.autocast_mode", original.__qualname__
        )
        for module in (torch.amp, torch.amp.autocast_mode):
            patches.set(module, name, wrapper)


def _state(patches: Patches, target: Target) -> None:
    for name in _BY_DEVICE_TYPE:
        for module in (torch, torch.amp):
            original = vars(module).get(name)
            if original is not None:
                wrapper = translate_type(original, target)
                patches.set(module, name, disguise(wrapper, original, module.__name__, name))
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
        name = wrapper.__name__
        patches.set(torch, name, disguise(wrapper, getattr(torch, name), "torch", name))
