"""Libraries that ask a device for its name: `device.type == "cuda"`.

The name of a device is the device's own and cannot be mapped. Where a library refuses every other name although the
rest of its code is right for the device, the one function that refuses is replaced when the library is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from ditorch.mapping.importing import ImportHook
from ditorch.mapping.patches import Patches
from ditorch.mapping.target import Target
from ditorch.mapping.wrapping import disguise

__all__ = ["apply"]

_Mend = Callable[[ModuleType, Patches, Target], None]


def apply(patches: Patches, target: Target) -> None:
    """Mend what is imported already, and the rest when it comes."""
    mended: set[int] = set()

    def mend(module: ModuleType) -> None:
        if id(module) not in mended:
            mended.add(id(module))
            _MENDED[module.__name__](module, patches, target)

    def load(loader: Any, module: ModuleType) -> None:
        loader.exec_module(module)
        mend(module)

    def catch_up() -> None:
        # Also what came while the mapping was off.
        if patches.installed:
            for module in [sys.modules[name] for name in _MENDED if name in sys.modules]:
                mend(module)

    patches.insert(sys.meta_path, ImportHook(_MENDED, load), lambda entries: 0)
    patches.after_change(catch_up)


def _lightning_accelerator(module: ModuleType, patches: Patches, target: Target) -> None:
    """`Trainer(accelerator="gpu")` looks for cuda devices, finds them, and then refuses their name."""
    accelerator = module.CUDAAccelerator
    original = accelerator.setup_device

    def setup_device(self: Any, device: torch.device) -> None:
        if device.type == target.device_type:
            torch.cuda.set_device(device)
        else:
            original(self, device)

    wrapper = disguise(setup_device, original, original.__module__, original.__qualname__)
    patches.set(accelerator, "setup_device", wrapper)


def _lightning_module(module: ModuleType, patches: Patches, target: Target) -> None:
    """`on_gpu`, which training steps ask."""
    original = module.LightningModule.on_gpu

    def on_gpu(self: Any) -> bool:
        return self.device.type == target.device_type or original.fget(self)

    patches.set(module.LightningModule, "on_gpu", property(on_gpu, doc=original.__doc__))


_MENDED: dict[str, _Mend] = {
    "lightning.fabric.accelerators.cuda": _lightning_accelerator,
    "lightning.pytorch.accelerators.cuda": _lightning_accelerator,
    "lightning.pytorch.core.module": _lightning_module,
    # The same library under its older names.
    "lightning_fabric.accelerators.cuda": _lightning_accelerator,
    "pytorch_lightning.accelerators.cuda": _lightning_accelerator,
    "pytorch_lightning.core.module": _lightning_module,
}
