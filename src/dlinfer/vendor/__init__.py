"""Import names that LMDeploy fixes for chips. dlinfer's own vendors are in `dlinfer.vendors`."""

from __future__ import annotations

__all__ = ["vendor_name"]


def __getattr__(name: str) -> str:
    """`vendor_name`: whose kernels serve the engine's device."""
    if name != "vendor_name":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dlinfer.framework.lmdeploy.setup import set_up
    from dlinfer.vendors import chosen

    return chosen(set_up().value).name
