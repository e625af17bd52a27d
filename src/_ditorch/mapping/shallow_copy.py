"""A parameter stays the same object when its module moves: `model.cuda()`, `parameter.data = parameter.data.cuda()`.

torch keeps a parameter and exchanges what is in it when the two kinds of tensor are compatible. Of devices that are
registered from outside it says they are not, and makes new parameters: weights that two layers share are then two
weights, and an optimizer made before the move trains the old ones. Programs written for cuda rely on neither.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.library

from _ditorch.mapping.patches import Patches
from _ditorch.mapping.translation import Target

__all__ = ["apply"]

_OPERATOR = "_has_compatible_shallow_copy_type"
_KEY = "PrivateUse1"


def apply(patches: Patches, target: Target) -> None:
    # Private: which device took torch's slot for devices from outside, and whether it answers by itself.
    if target.device_type != torch._C._get_privateuse1_backend_name():
        return
    if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_OPERATOR}", _KEY):
        return
    answer = _Answer()
    patches.after_change(lambda: answer.follow(patches.installed))


class _Answer:
    """The device's answer to torch's question, there as long as the mapping is."""

    def __init__(self) -> None:
        self._library: Any = None

    def follow(self, installed: bool) -> None:
        if installed and self._library is None:
            self._library = torch.library.Library("aten", "IMPL")
            self._library.impl(_OPERATOR, _is_compatible, _KEY)
        elif not installed and self._library is not None:
            self._library._destroy()
            self._library = None


def _is_compatible(tensor: torch.Tensor, source: torch.Tensor) -> bool:
    """As for cuda: one dense tensor can take over the content of another, wherever that is."""
    return tensor.layout is torch.strided and source.layout is torch.strided
