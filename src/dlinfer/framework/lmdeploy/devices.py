"""Where LMDeploy's tensors live (DLINFER_DEVICE, DLINFER_CPU_MEMORY), and what LMDeploy calls the device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

from dlinfer.settings import CPU_MEMORY, DEVICE

#: The value of LMDeploy's `device_type` by which it comes to dlinfer most completely.
DEVICE_TYPE = "ascend"
#: The one that LMDeploy serves with its own kernels. It hands all others to dlinfer.
OWN_DEVICE = "cuda"
_GIB = 1 << 30


class EngineDevice(Enum):
    """A kind of device, by the name that torch has for it."""

    CPU = "cpu"
    DIPU = "dipu"
    CUDA = "cuda"


class EngineDeviceError(RuntimeError):
    """A setting cannot be followed: what was wrong, what was expected, what to do."""


def chosen_device(environment: Mapping[str, str] = os.environ) -> EngineDevice:
    """What DLINFER_DEVICE names; without it cuda where there is one, else the CPU."""
    wanted = DEVICE.get(environment)
    if not wanted:
        return EngineDevice.CUDA if torch.cuda.is_available() else EngineDevice.CPU
    device = EngineDevice(wanted)
    missing = _missing(device)
    if missing:
        raise EngineDeviceError(
            f"{DEVICE.name}={wanted} cannot be used: {missing}. Unset {DEVICE.name} to let dlinfer choose."
        )
    return device


def _missing(device: EngineDevice) -> str:
    """What keeps a device from being used; empty if nothing does."""
    if device is EngineDevice.CUDA and not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no cuda device"
    if device is EngineDevice.DIPU and find_spec("torch_dipu") is None:
        return "the package torch_dipu is not installed"
    return ""


def cpu_memory() -> int:
    """DLINFER_CPU_MEMORY in bytes."""
    return int(CPU_MEMORY.get() * _GIB)


def serves(device_type: str) -> bool:
    """Whether dlinfer's operators run under a device type. LMDeploy says "auto" where it means its own."""
    return device_type not in (OWN_DEVICE, "auto")


def map_cuda_to_dipu() -> None:
    """Start ditorch for dipu, with its whole mapping of cuda's names, unless the program has started it before."""
    from _ditorch.selection import choose
    from _ditorch.session import of_process
    from _ditorch.settings import DEVICE as SETTING

    session = of_process()
    if not session.framework:
        session.start(choose(environment={SETTING.name: "dipu", **os.environ}))
    session.enable()
    if not session.framework.startswith("torch_dipu"):
        raise EngineDeviceError(
            f"{DEVICE.name}=dipu cannot be followed: ditorch was started for {session.framework} "
            f"({SETTING.name}={os.environ.get(SETTING.name, '')}). Set {SETTING.name}=dipu, or unset it."
        )


# ---- the chip that LMDeploy sees ----

_NAME = "Ascend910B (dlinfer)"
# LMDeploy reads from it how ranks exchange tokens of experts: 220 to 225 is the generation with plain collectives.
_CHIP_VERSION = 220


class DeviceModule(ModuleType):
    """`torch.npu`, of which LMDeploy asks the name and number of devices; stands for what a package for the chip would bring.

    The answers are those of a chip whose caches LMDeploy lays out as [block, position, head, channel]; `is_available` says no,
    so that other libraries in the process do not take the device for a real one.
    """

    def __init__(self, device: EngineDevice) -> None:
        super().__init__("torch.npu", self.__doc__)
        self._device = device

    def is_available(self) -> bool:
        return False

    def device_count(self) -> int:
        """How many devices tensors can be on; one CPU."""
        return 1 if self._device is EngineDevice.CPU else torch.cuda.device_count()

    def current_device(self) -> Any:
        """A device in a notation that factories of torch take."""
        return "cpu" if self._device is EngineDevice.CPU else torch.cuda.current_device()

    def get_device_name(self, device: Any = None) -> str:
        return _NAME

    def get_soc_version(self) -> int:
        return _CHIP_VERSION


def install_device_module(device: EngineDevice) -> None:
    """Set `torch.npu`, unless a package for the real chip has."""
    if not hasattr(torch, "npu"):
        torch.npu = DeviceModule(device)  # type: ignore[attr-defined]
