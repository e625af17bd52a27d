"""The environment variables of diopi. Imports nothing of this package: see `dicore.settings`.

A vendor declares its own beside its library: `diopi.vendors.Vendor.settings`.
"""

from __future__ import annotations

from dicore.settings import Variable

DEVICE = Variable(
    "DIPU_DEVICE",
    "",
    "the vendor: a name (`host`), or the path of its library (`/path/lib.so`)",
    unset="the vendor of the highest priority that has a device",
)
ADAPTOR_CONFIG = Variable(
    "DIOPI_ADAPTOR_CONFIG",
    "",
    "rules (`convert_config.yaml`) in front of a library that is loaded without the device, as `diopi conformance` does",
)
ADAPTOR_REPORT = Variable(
    "DIOPI_ADAPTOR_REPORT", "", "a file that gets what such rules cost, when the process ends"
)
SOURCE = Variable(
    "DIOPI_SOURCE", "", "a checkout of DIOPI, for `diopi build-published` where --source is not given"
)
LIBRARY = Variable(
    "DIOPI_LIBRARY",
    "",
    "the library under test of the test file that `conformance/main.py --mode gen_case` writes",
)
