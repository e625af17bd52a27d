"""The vendor `cpp`: vectorised, multi-threaded kernels for memory that the CPU can read (`cpu`, and `dipu` on the host)."""

from __future__ import annotations

import sys

from dlinfer import __version__
from dlinfer.interface import OPERATORS
from dlinfer.vendors.dispatch import Vendor

try:
    from dlinfer import _cpp  # type: ignore[attr-defined]
except ImportError as error:  # not built, or built for another torch
    _MISSING: str | None = f"its library cannot be loaded: {error}"
    _KERNELS = {}
else:
    # Its functions have the names of the operators. One that was built before the last change of schemas would misread arguments.
    _MISSING = (
        None if hasattr(_cpp, "cpu_capability") else "its library is older than this package: build it again"
    )
    _KERNELS = {name: getattr(_cpp, name) for name in OPERATORS if hasattr(_cpp, name)}


class HostVendor(Vendor):
    """Serves `dipu` only where the CPU can reach the memory of the chip behind it."""

    def serves(self, device: str) -> bool:
        return super().serves(device) and (device != "dipu" or _reaches_dipu())


def _reaches_dipu() -> bool:
    # Whoever has a tensor there has this module. It is not imported: its package maps the names of cuda, which no question may.
    library = sys.modules.get("torch_dipu._C")
    if library is None:
        return False
    try:
        return bool(library.has_alias())
    except RuntimeError:  # no chip can be loaded; whoever makes a tensor there is told why
        return False


VENDOR = HostVendor(
    name="cpp",
    version=__version__,
    kernels=_KERNELS,
    devices=("cpu", "dipu"),
    priority=100,
    values="own",
    problem=lambda: _MISSING,
)
