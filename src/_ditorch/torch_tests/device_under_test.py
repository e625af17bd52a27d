"""Which device is under test, and how processes for it are started."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from _ditorch.adapters import Adapter, all_adapters
from _ditorch.selection import Choice, choose
from _ditorch.session import of_process

__all__ = ["DeviceUnderTest", "answers", "device_under_test"]


@dataclass(frozen=True)
class DeviceUnderTest:
    """A device and the framework that brings it; None for what is in every torch."""

    device: str
    adapter: Adapter | None

    @property
    def type(self) -> str:
        return self.device.partition(":")[0]

    @property
    def can_preload(self) -> bool:
        """Importing the database may touch torch's own accelerators, which a forked process cannot use then."""
        return torch.version.cuda is None and self.type in ("cpu", _privateuse1(self.adapter))

    @property
    def is_privateuse1(self) -> bool:
        return self.type == _privateuse1(self.adapter)

    def load(self) -> None:
        """In a process under test: what `import ditorch` does there, for this device and no other."""
        if self.adapter is not None:
            of_process().start(Choice(self.adapter, "it is under test"), quiet=True)

    def environment(self, *, mapping: bool) -> dict[str, str | None]:
        """For a process under test: one thread, this device, and the names of cuda mapped or not."""
        return {
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # the device comes to life in each process, after the fork
            "DITORCH_DEVICE": self.adapter.name if self.adapter else None,
            "DITORCH_DISABLE_MOCK": None if mapping else "1",
            "DIPU_MOCK_CUDA": None if mapping else "0",
        }


def device_under_test(device: str | None) -> DeviceUnderTest:
    """The named device, or the one that ditorch chooses. Raises ValueError for what torch does not know."""
    if device is None:
        chosen = choose().adapter
        return DeviceUnderTest(chosen.device_type, chosen)
    kind = device.partition(":")[0]
    adapter = next((found for found in all_adapters() if found.device_type == kind), None)
    if adapter is None:
        try:
            torch.device(device)
        except RuntimeError as error:
            device_types = sorted({found.device_type for found in all_adapters()} | {"cpu"})
            raise ValueError(
                f"torch knows no device {device!r}. Known to ditorch: {', '.join(device_types)}."
            ) from error
    return DeviceUnderTest(device, adapter)


def answers(device: str) -> bool:
    """After some errors (an assertion in a kernel, say) a device refuses everything in this process."""
    try:
        return bool((torch.ones(1, device=device) + 1).item() == 2)
    except Exception:
        return False


def _privateuse1(adapter: Adapter | None) -> str:
    """What torch's one slot for devices from outside is called here; it gets its name when the device is loaded."""
    if adapter is not None and adapter.package != "torch":
        return adapter.device_type
    return torch._C._get_privateuse1_backend_name()
