"""The conformance suite: is a vendor's DIOPI library right, operator by operator, without a second machine.

A case is one call of one C function. Its reference is a Python expression of the operator table, computed on the CPU in
float64 and in the call's own dtype; `op_tools.verdict` judges. Cases come from four sources: PyTorch's operator database,
the suite's own samples, calls captured from models, and files that users write. Runs and reports are `dicore.conformance`'s.
"""

from __future__ import annotations

import os
from unittest import mock

__all__ = ["import_torch_without_device"]

# A device of torch would own the runtime functions that a library looks for.
TORCH_ENVIRONMENT = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}


def import_torch_without_device() -> None:
    """For programs, before anything imports torch. Where torch is there already, this changes nothing."""
    with mock.patch.dict(os.environ, TORCH_ENVIRONMENT):  # only the import of torch reads it
        import torch  # noqa: F401
