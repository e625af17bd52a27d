"""The vendor `ref`: plain PyTorch for every operator, on any device."""

from __future__ import annotations

from dlinfer import __version__
from dlinfer.reference import KERNELS
from dlinfer.vendors.dispatch import Vendor

VENDOR = Vendor(name="ref", version=__version__, kernels=KERNELS, priority=-1000, values="always")
