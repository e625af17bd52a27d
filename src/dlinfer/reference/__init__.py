"""Plain PyTorch for every operator, on any device that torch has: what is right, and what runs where no kernel is.

Functions compute in float32 (in float64 if the input is that) and round once at the end, except where a declaration says that
something in between is rounded.
"""

from __future__ import annotations

from dlinfer.interface.kernels import Kernels
from dlinfer.interface.kernels import reference as KERNELS
from dlinfer.reference import attention, cache, layers, matmul, moe, sparse  # each registers its functions

__all__ = ["KERNELS", "Kernels", "attention", "cache", "layers", "matmul", "moe", "sparse"]
