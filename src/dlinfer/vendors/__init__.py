"""Vendors of kernels: which there are, and which serves which operator on which device."""

from __future__ import annotations

from dlinfer.interface.kernels import Kernels
from dlinfer.vendors.dispatch import Vendor, VendorStatus, chosen, installed, served_by, use, using

__all__ = ["Kernels", "Vendor", "VendorStatus", "chosen", "installed", "served_by", "use", "using"]
