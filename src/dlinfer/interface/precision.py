"""In which dtype results of reduced precision are computed."""

from __future__ import annotations

import torch
from torch import Tensor


def wide(value: Tensor | torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for everything else."""
    dtype = value.dtype if isinstance(value, Tensor) else value
    return torch.float64 if dtype == torch.float64 else torch.float32
