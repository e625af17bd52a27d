"""Makes `dipu` a device of this process, once."""

from __future__ import annotations

import sys

import torch

from diopi.vendors import VendorError, choose
from torch_dipu import _C, interchange, other_accelerators, random, shutdown, unsupported
from torch_dipu import dipu as device_module
from torch_dipu.settings import ADAPTOR_CONFIG, DEVICE_MEMCACHING_ALGORITHM

_done = False


def register() -> None:
    """Registers name, device module, methods, operators and the distributed backend; the vendor waits for its first use."""
    global _done
    if _done:
        return
    _done = True
    try:
        library = str(choose().library)
        if ADAPTOR_CONFIG.is_set():  # reading rules takes time that only those who have some should spend
            from torch_dipu import adaptor

            adaptor.use_rules()
        _C.choose_vendor(library, "")
    except VendorError as problem:  # raised when the device is used; importing must work
        _C.choose_vendor("", str(problem))
    if problems := _C.read_settings():
        print(f"dipu: these settings are left out:\n{problems}", file=sys.stderr, end="")
    if wrong := DEVICE_MEMCACHING_ALGORITHM.problem():
        print(f"dipu: this setting is left out: {wrong}", file=sys.stderr)
    _C.choose_memory_algorithm(DEVICE_MEMCACHING_ALGORITHM.get_or_default())
    _C.follow_environment()
    torch.utils.rename_privateuse1_backend("dipu")
    torch._register_device_module("dipu", device_module)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    _C.register_direct_fallbacks()
    random.register_copies()
    shutdown.register()
    interchange.register()
    unsupported.register()
    other_accelerators.follow_backward()
    if torch.distributed.is_available():
        from torch_dipu import distributed

        distributed.register()
