"""Makes `dipu` a device of this process, once."""

from __future__ import annotations

import torch

from diopi.vendors import VendorError, choose
from torch_dipu import _C, shutdown
from torch_dipu import device as device_module

_done = False


def register() -> None:
    """Registers name, device module, methods, operators and the distributed backend; the vendor waits for its first use."""
    global _done
    if _done:
        return
    _done = True
    try:
        _C.choose_vendor(str(choose().library), "")
    except VendorError as problem:  # raised when the device is used; importing must work
        _C.choose_vendor("", str(problem))
    torch.utils.rename_privateuse1_backend("dipu")
    torch._register_device_module("dipu", device_module)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    _C.register_direct_fallbacks()
    shutdown.register()
    if torch.distributed.is_available():
        from torch_dipu import distributed

        distributed.register()
