"""Makes `dipu` a device of this process, once."""

from __future__ import annotations

import os
import sys

import torch

from diopi.vendors import VendorError, choose
from torch_dipu import _C, shutdown
from torch_dipu import dipu as device_module

_done = False


def _adaptor_rules(path: str) -> str:
    """The rules of a convert_config.yaml; what is wrong with them is the vendor's problem, told on first use."""
    from diopi.adaptor import RulesError, read_rules

    try:
        return read_rules(path).compact()
    except (RulesError, OSError, ImportError) as error:
        raise VendorError(f"DIPU_ADAPTOR_CONFIG={path}: {error}") from error


def register() -> None:
    """Registers name, device module, methods, operators and the distributed backend; the vendor waits for its first use."""
    global _done
    if _done:
        return
    _done = True
    try:
        library = str(choose().library)
        if rules := os.environ.get("DIPU_ADAPTOR_CONFIG"):
            _C.choose_rules(_adaptor_rules(rules))
        _C.choose_vendor(library, "")
    except VendorError as problem:  # raised when the device is used; importing must work
        _C.choose_vendor("", str(problem))
    if problems := _C.read_switches():
        print(f"dipu: these settings are left out:\n{problems}", file=sys.stderr, end="")
    _C.follow_environment()
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
