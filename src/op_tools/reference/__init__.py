"""Running a call again elsewhere: on the CPU or another device, in its own dtype, exactly, and with moved inputs.

`base.Reference` is what a verdict asks; `recompute.Recomputation` answers for calls of PyTorch. Other suites subclass
`Reference` and only say how to evaluate.
"""

from __future__ import annotations

from op_tools.reference.base import Reference
from op_tools.reference.recompute import Recomputation, RecomputeError

__all__ = ["Recomputation", "RecomputeError", "Reference"]
