"""The simulated chip (vendors/host): always there, taken when nothing better is."""

from pathlib import Path

from diopi.vendors import Vendor

VENDOR = Vendor(
    name="host",
    library=Path(__file__).parent / "lib" / "libdiopi_host.so",
    priority=-100,
    settings={
        "DIPU_HOST_DEVICES": ("2", "how many devices are simulated"),
        "DIPU_HOST_MEMORY": ("8G", "memory of each device, such as 512M or 8G"),
        "DIPU_HOST_NUMERICS": (
            "plain",
            "plain: the CPU's bits; reordered: equally right sums in another order",
        ),
        "DIPU_HOST_ALIAS": ("1", "0: what is not in the table runs on copies instead of over device memory"),
        "DIPU_HOST_ASYNC": ("0", "1: work is queued; results are there after a synchronisation"),
        "DIPU_HOST_DELAY_US": ("0", "delay before each queued task, in microseconds"),
    },
)
