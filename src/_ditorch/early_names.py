"""Functions of torch.cuda that a program took by name before ditorch was imported.

`from torch.cuda import synchronize` holds torch's own function, which nothing can replace afterwards. It ends
in a binding that a torch without cuda does not have, and an AttributeError about `torch._C` tells nobody what
to do. So the missing bindings say it.
"""

from __future__ import annotations

import torch

from _ditorch.mapping.patches import Patches
from _ditorch.mapping.unmapped import explain_missing

__all__ = ["apply"]

_BINDING = "_cuda_"
_WHY = (
    "A function of torch.cuda that was imported by name before ditorch is not mapped. "
    "Import ditorch first, or call the function as torch.cuda.<name>"
)


def apply(patches: Patches) -> None:
    """Let `torch._C` explain its missing bindings of cuda; they stay missing for hasattr."""
    explained = explain_missing(torch._C, lambda name: _WHY if name.startswith(_BINDING) else "")
    patches.set(torch._C, "__getattr__", explained)
