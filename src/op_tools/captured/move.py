"""Moves captured values to the device where they are to run: fresh copies, same strides, leaves for autograd."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any

import torch

from op_tools.captured.load import GENERATOR
from op_tools.storage import Opaque
from op_tools.transfer import copy_tensor
from op_tools.trees import map_leaves, map_tensors

__all__ = ["cloned", "copied", "keeps_statistics", "resolve_device", "to_device"]

_HOST_ONLY = {"cpu", "meta"}


def resolve_device(wanted: str) -> torch.device:
    """The device asked for, or this machine's accelerator, or the CPU."""
    if wanted:
        return torch.device(wanted)
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator if accelerator is not None else torch.device("cpu")


def copied(tensor: torch.Tensor, device: torch.device, *, requires_grad: bool) -> torch.Tensor:
    """A leaf of its own with the same values, dtype and strides."""
    with torch.no_grad():
        source = tensor.detach()
        if source.layout is torch.strided and not source.is_quantized and _dense(source):
            copy = torch.empty_strided(source.size(), source.stride(), dtype=source.dtype, device=device)
            copy.copy_(source)
        else:
            copy = copy_tensor(source, device)
    if requires_grad and (copy.is_floating_point() or copy.is_complex()):
        copy.requires_grad_(True)
    return copy


def _dense(tensor: torch.Tensor) -> bool:
    """Whether no two elements share memory and no memory lies between them: only then strides carry over."""
    expected = 1
    for size, stride in sorted(zip(tensor.size(), tensor.stride(), strict=True), key=lambda pair: pair[1]):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def to_device(
    value: Any,
    device: torch.device,
    *,
    captured_on: str = "",
    on_host: Container[int] = (),
    requires_grad: bool = True,
) -> Any:
    """A copy of an argument tree on `device`. Device arguments that named an accelerator name this one.

    A tensor that stands there twice is copied once: `x * x` has one gradient. Tensors whose id is in `on_host`
    stay where they were, on the host (lengths and splits of some operators must).
    """
    copies: dict[int, torch.Tensor] = {}

    def tensor(item: torch.Tensor) -> torch.Tensor:
        if id(item) not in copies:
            where = torch.device("cpu") if id(item) in on_host else device
            copies[id(item)] = copied(item, where, requires_grad=requires_grad and item.requires_grad)
        return copies[id(item)]

    def leaf(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return tensor(item)
        if isinstance(item, torch.device):
            return item if item.type in _HOST_ONLY else device
        if isinstance(item, torch.Generator) or (isinstance(item, Opaque) and item.type_name == GENERATOR):
            return torch.Generator(device)
        if isinstance(item, str):
            return device if _names_accelerator(item, captured_on) else item
        return item

    return map_leaves(value, leaf)


def cloned(value: Any) -> Any:
    """The same tree with differentiable copies; what was one tensor stays one."""
    clones: dict[int, torch.Tensor] = {}
    return map_tensors(value, lambda tensor: clones.setdefault(id(tensor), tensor.clone()))


def _names_accelerator(text: str, captured_on: str) -> bool:
    """Whether a text argument is a device ('cuda:0') and not a mode ('mean') or an equation ('ij,jk->ik')."""
    kind = text.partition(":")[0]
    if not _DEVICE_TEXT.fullmatch(text) or kind in _HOST_ONLY:
        return False
    if ":" in text or kind == captured_on.partition(":")[0]:
        return True  # also devices that this machine's torch has never heard of
    try:
        torch.device(text)
    except RuntimeError:
        return False
    return True


_DEVICE_TEXT = re.compile(r"[a-z]+(:\d+)?")


def keeps_statistics(name: str) -> bool:
    """Batch and instance norm write running means and variances; not even their schemas always say so."""
    return "batch_norm" in name or "instance_norm" in name
