"""The PyTorch device `dipu`: any chip behind the DIOPI interface.

Importing this package registers the device and, unless `DIPU_MOCK_CUDA=0`, maps the names of CUDA onto it. A real CUDA
device keeps its names: other libraries (mmengine) import whatever package of a device they find.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

import torch_dipu_autoload

if torch_dipu_autoload.package is not None:
    # `import torch` has imported this package and given its name back, so that an import by a user still gets here. What
    # the user gets is that module, with everything it holds: an import gives whatever lies in sys.modules when it ends.
    sys.modules[__name__] = torch_dipu_autoload.package

from torch_dipu import dipu
from torch_dipu.dipu import current_stream, set_sync_debug_mode
from torch_dipu.registration import register
from torch_dipu.settings import asked_for, mock_cuda

__version__ = "0.1.0"
__all__ = ["__version__", "current_stream", "dipu", "set_sync_debug_mode"]

_IMPORTED_ON_USE = ("adaptor", "coverage", "kernels")


def __getattr__(name: str) -> ModuleType:
    if name in _IMPORTED_ON_USE:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register()

if not torch_dipu_autoload.in_progress and mock_cuda() and (asked_for() or not torch.cuda.is_available()):
    import ditorch  # noqa: F401  (maps the names of CUDA)
