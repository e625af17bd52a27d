"""Vendors of kernels: which there are, and which serves which operator on which device."""

from __future__ import annotations

from dlinfer.vendors.model import Vendor
from dlinfer.vendors.selection import Found, chosen, installed, served_by, use, using

__all__ = ["Found", "Vendor", "chosen", "installed", "served_by", "use", "using"]
