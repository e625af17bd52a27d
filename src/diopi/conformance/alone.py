"""Imports torch with one thread and without a device, which would own the runtime functions that a library looks for.

Where torch is there already, this changes nothing. The environment is left as it was: only the import of torch reads it.
"""

from __future__ import annotations

import os
from unittest import mock

with mock.patch.dict(os.environ, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}):
    import torch

__all__ = ["torch"]
