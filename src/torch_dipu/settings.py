"""Settings of the device that Python reads; each is an environment variable."""

from __future__ import annotations

import os

_NO = {"0", "false", "off", "no"}


def flag(name: str, default: bool) -> bool:
    """A variable that is on or off: 0, false, off and no (in any case) are off."""
    text = os.environ.get(name, "").strip().lower()
    return default if not text else text not in _NO


def mock_cuda() -> bool:
    """Whether `import torch_dipu` maps the names of CUDA onto the device."""
    return flag("DIPU_MOCK_CUDA", True) and not flag("DITORCH_DISABLE_MOCK", False)


def asked_for() -> bool:
    """Whether the user said that the names of CUDA shall mean this device, also beside a real one."""
    return bool(os.environ.get("DIPU_MOCK_CUDA", "").strip()) or os.environ.get(
        "DITORCH_DEVICE", ""
    ).strip().lower() in ("dipu", "torch_dipu")
