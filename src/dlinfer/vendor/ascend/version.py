"""Checked by LMDeploy before a worker process starts. The module's name is fixed by LMDeploy."""

from __future__ import annotations

__all__ = ["ensure_ascend_runtime"]


def ensure_ascend_runtime() -> None:
    """The runtime is torch's own on the device that DLINFER_DEVICE names; set up here if it is not yet."""
    from dlinfer.framework.lmdeploy.setup import set_up

    set_up()
