"""The simulated chip (vendors/host): always there, taken when nothing better is."""

from pathlib import Path

from diopi.vendors import Vendor

VENDOR = Vendor(name="host", library=Path(__file__).parent / "lib" / "libdiopi_host.so", priority=-100)
