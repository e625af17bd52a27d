"""A GPU that is not here, for Triton to compile for."""

from __future__ import annotations

from typing import Any

COMPUTE_CAPABILITY = 90


class DeviceTarget:
    """What Triton asks a driver for until a kernel is loaded."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", COMPUTE_CAPABILITY, 32)
