"""Functions of torch.cuda that a program took by name before ditorch was imported.

`from torch.cuda import synchronize` holds torch's own function, which nothing can replace afterwards. It ends
in a binding that a torch without cuda does not have, and an AttributeError about `torch._C` tells nobody what
to do. So the missing bindings say it.
"""

from __future__ import annotations

from typing import Any

import torch

from ditorch.mapping.patches import Patches

__all__ = ["apply"]

_BINDING = "_cuda_"


def apply(patches: Patches) -> None:
    """Let `torch._C` explain its missing bindings of cuda; they stay missing for hasattr."""
    module = torch._C

    def __getattr__(name: str) -> Any:
        text = f"module 'torch._C' has no attribute {name!r}"
        if name.startswith(_BINDING):
            text += (
                ". A function of torch.cuda that was imported by name before ditorch is not mapped. "
                "Import ditorch first, or call the function as torch.cuda.<name>"
            )
        raise AttributeError(text)

    patches.set(module, "__getattr__", __getattr__)
