"""The PyTorch device `dipu`: any chip behind the DIOPI interface.

Importing this package registers the device and, unless `DIPU_MOCK_CUDA=0`, maps the names of CUDA onto it. A real CUDA
device keeps its names: other libraries (mmengine) import whatever package of a device they find.
"""

from __future__ import annotations

import sys

import torch

from torch_dipu import dipu
from torch_dipu.registration import register
from torch_dipu.settings import asked_for, mock_cuda

__version__ = "0.1.0"
__all__ = ["__version__", "dipu"]

register()

if mock_cuda() and "ditorch" not in sys.modules and (asked_for() or not torch.cuda.is_available()):
    import ditorch  # noqa: F401  (maps the names of CUDA)
