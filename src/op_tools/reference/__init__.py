"""Running a call again elsewhere: on the CPU or another device, in its own dtype, exactly, and with moved inputs."""

from __future__ import annotations

from op_tools.reference.recompute import Recomputation, RecomputeError, flat_results, flat_tensors

__all__ = ["Recomputation", "RecomputeError", "flat_results", "flat_tensors"]
