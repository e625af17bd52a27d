"""torch_dipu: the device 'dipu', behind which any vendor with a DIOPI library can stand."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from _ditorch.adapters.base import Availability, importing_framework
from _ditorch.adapters.extension import ExtensionAdapter

if TYPE_CHECKING:
    from _ditorch.mapping.translation import Target

__all__ = ["DipuAdapter"]


class DipuAdapter(ExtensionAdapter):
    name = device_type = "dipu"
    package = "torch_dipu"
    priority = 90
    """Last: without any other chip its simulated vendor is still there."""
    process_group = "dicl"
    averages = True
    how_to_install = (
        "build it beside the installed torch: `make env`, or `pip install . --no-build-isolation`"
    )

    def requested(self) -> str:
        # torch's autoload of the device leaves no trace under this name, so somebody wrote `import
        # torch_dipu`.
        return "the program imported torch_dipu" if self.package in sys.modules else ""

    def version(self) -> str:
        return self._package().__version__

    def vendor(self) -> str:
        try:
            return self._package().dipu.vendor_name()
        except RuntimeError:
            # As the device itself does: importing works, and the first use tells what is wrong.
            return "no vendor: see `dipu doctor`"

    def follows_visible_devices(self) -> bool:
        return self.vendor() == "cuda"  # whose own driver reads it

    def target(self) -> Target:
        # No view: this module has every name that a view would add.
        return self.target_for(self._package().dipu)

    def advice_for(self, error: str) -> str:
        if "undefined symbol" in error or "lib" in error:
            return f"its library does not fit this torch or was not built; {self.how_to_install}"
        return self.how_to_install

    def ask(self, version: str = "") -> Availability:
        try:
            device = self._package().dipu
            count: int = device.device_count()
            if not count:
                device.init()  # raises what is wrong with the vendor, if that is why there is no device
        except Exception as error:  # a broken build can fail in any way, and looking must not
            return Availability(
                devices=0,
                missing=f"torch_dipu cannot be used: {type(error).__name__}: {error}",
                advice="check DIPU_DEVICE: it must name an installed vendor or the path of a vendor's library",
                broken=True,
            )
        if count:
            return Availability(devices=count, version=self.version())
        return Availability(
            devices=0,
            missing="torch_dipu is there but its vendor reports no device",
            advice="run `dipu doctor`, and check DIPU_DEVICE and the settings of the vendor",
        )

    @staticmethod
    def _package() -> Any:
        # Not `import torch_dipu`: when torch_dipu imports ditorch, this must find it half-way through its own
        # import, at the point where its device is ready.
        with importing_framework():
            return importlib.import_module("torch_dipu")
