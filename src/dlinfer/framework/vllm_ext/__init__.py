"""dlinfer's operators under vLLM, as a platform that vLLM finds by its entry points.

`platform_plugin` (group `vllm.platform_plugins`) names the platform, `register` (group `vllm.general_plugins`) puts dlinfer's
layers instead of vLLM's. A platform from outside takes precedence over vLLM's own ones, so this one is there only when
the variable DLINFER_VLLM_DEVICE asks for it. vLLM itself is imported by nothing here until vLLM asks.
"""

from __future__ import annotations

from dlinfer.settings import VLLM_DEVICE

_PACKAGE = "dlinfer.framework.vllm_ext"


def wanted_device() -> str | None:
    """The type of device that vLLM shall run on through dlinfer; None: vLLM is left alone."""
    return VLLM_DEVICE.get() or None


def platform_plugin() -> str | None:
    """What vLLM calls to find the platform: the path of its class, or None."""
    return f"{_PACKAGE}.platform.DlinferPlatform" if wanted_device() else None


def register() -> None:
    """What vLLM calls in each of its processes, perhaps more than once."""
    if wanted_device():
        from dlinfer.framework.vllm_ext.layers import register_layers

        register_layers()
