"""Which values of LMDeploy's `device_type` are dlinfer's."""

from __future__ import annotations

__all__ = ["OWN_DEVICE", "serves"]

#: The one that LMDeploy serves with its own kernels. It hands all others to dlinfer.
OWN_DEVICE = "cuda"


def serves(device_type: str) -> bool:
    """Whether dlinfer's operators run under a device type. LMDeploy says "auto" where it means its own."""
    return device_type not in (OWN_DEVICE, "auto")
