"""The simulated chip (vendors/host): always there, taken when nothing better is."""

from pathlib import Path

from dicore.settings import Variable, flag, one_of, size
from diopi.vendors import Vendor

VENDOR = Vendor(
    name="host",
    library=Path(__file__).parent / "lib" / "libdiopi_host.so",
    priority=-100,
    settings=(
        Variable("DIPU_HOST_DEVICES", 2, "how many devices are simulated", int),
        Variable("DIPU_HOST_MEMORY", "8G", "memory of each simulated device (`512M`, `8G`)", size),
        Variable(
            "DIPU_HOST_NUMERICS",
            "plain",
            "`plain`: the CPU's bits; `reordered`: equally right sums in another order",
            one_of("plain", "reordered"),
        ),
        Variable(
            "DIPU_HOST_ALIAS",
            True,
            "`0`: what has no operator in the table runs on copies, as on a chip that cannot share memory",
            flag,
        ),
        Variable(
            "DIPU_HOST_ASYNC", False, "`1`: work is queued; results are there after a synchronisation", flag
        ),
        Variable(
            "DIPU_HOST_DELAY_US",
            0,
            "delay before each queued task in microseconds, which makes a missing wait certain to show",
            int,
        ),
        Variable(
            "DIPU_HOST_FAULT",
            "",
            "entries of the vendor table that fail on purpose: `entry:call:status`, such as `event_create:3:DIPU_ERROR`, "
            "with commas",
        ),
    ),
)
