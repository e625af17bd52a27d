"""Copies of a call's values on another device, taken before the call so that in-place writes do not reach them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any

import torch

from op_tools.device_error import DeviceError
from op_tools.storages import storage_id
from op_tools.trees import map_leaves, tensors_of


def copy_tensor(tensor: torch.Tensor, device: str | torch.device, non_blocking: bool = False) -> torch.Tensor:
    """The values of a tensor on another device, detached, with the same strides where they are dense.

    `non_blocking`: they are there once the device has done what is queued on its current stream.
    """
    to = torch.device(device)
    queued = non_blocking and to.type == "cpu" and tensor.device.type not in {"cpu", "meta"}
    try:
        return _copy(tensor.detach(), to, queued)
    except (NotImplementedError, torch.OutOfMemoryError):  # there was no room for a copy: that is ours
        raise
    except RuntimeError as error:
        if tensor.layout == torch.strided and tensor.device.type not in {"cpu", "meta"}:
            raise DeviceError(error) from error
        raise


def _copy(tensor: torch.Tensor, device: torch.device, queued: bool) -> torch.Tensor:
    if tensor._is_zerotensor():  # it has no memory: not every kernel of every device expects that
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)
    if tensor.layout != torch.strided or tensor.is_quantized:
        return tensor.to(device, copy=True)
    # One row shown many times is copied once and shown many times again.
    slim = tensor
    if tensor.numel() > 1 and 0 in tensor.stride():
        for dim, (length, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            if stride == 0 and length > 1:
                slim = slim.narrow(dim, 0, 1)
    copy = _queued_copy(slim) if queued else None
    if copy is None:
        copy = slim.to(device, copy=True)
    return copy if slim is tensor else copy.expand(tensor.shape)


def _queued_copy(tensor: torch.Tensor) -> torch.Tensor | None:
    """Into pinned memory of the host, which devices write to while it goes on; None where that is not to be had."""
    if tensor.is_conj() or tensor.is_neg():
        return None
    # Both ends contiguous, whatever the order of the dimensions: of others some devices make a copy that is waited for.
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
    source = tensor.permute(order)
    try:
        pinned = torch.empty(source.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    except RuntimeError:  # no more of it, or no such thing on this device
        return None
    pinned.copy_(source, non_blocking=True)
    return pinned.permute(sorted(range(tensor.dim()), key=order.__getitem__))


class Transfer:
    """Copies the tensors of a tree, each once, and keeps what belongs together.

    Two different tensors of one call that show the same memory (`x.add_(x[0])`) are copied with that memory, so that
    a write to one is seen by the other, as on the device.
    """

    def __init__(
        self,
        device: str | torch.device,
        cast: dict[torch.dtype, torch.dtype] | None = None,
        *,
        values: bool = True,
        non_blocking: bool = False,
    ) -> None:
        self.device = torch.device(device)
        self.cast = cast or {}
        # Without values a copy has the shape and strides of its tensor and nothing in it: enough for a view.
        self.values = values
        self.non_blocking = non_blocking
        # By the id of the tensor, which the pair keeps alive.
        self._pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._memories: dict[int, torch.Tensor] = {}
        self._shared: set[int] = set()

    def tree(self, value: Any) -> Any:
        """A copy of a tree of arguments."""
        return map_leaves(value, self.leaf)

    def call(self, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Copies of the arguments of a call."""
        self._find_shared(args, kwargs)
        return self.tree(tuple(args)), self.tree(dict(kwargs))

    def _find_shared(self, args: Any, kwargs: Any) -> None:
        seen: dict[int, int] = {}
        for tensor in tensors_of((args, kwargs)):
            if tensor.layout != torch.strided or tensor.device.type == "meta" or type(tensor) not in _PLAIN:
                continue
            storage = storage_id(tensor)
            if seen.setdefault(storage, id(tensor)) != id(tensor):
                self._shared.add(storage)

    def pairs(self) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        """Each tensor with its copy."""
        return self._pairs.values()

    def leaf(self, value: Any) -> Any:
        """What stands in a copy for one value of a tree."""
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, torch.device) and value.type not in {"cpu", "meta"}:
            return self.device
        if isinstance(value, str) and _names_a_device(value):
            return str(self.device)
        if isinstance(value, torch.Generator):
            return None
        return value

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """The copy of a tensor; the same for the same tensor."""
        if id(tensor) not in self._pairs:
            copy = self._copy(tensor)
            if copy.dtype in self.cast:
                copy = copy.to(self.cast[copy.dtype])
            self._pairs[id(tensor)] = (tensor, copy)
        return self._pairs[id(tensor)][1]

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self.values and tensor.layout == torch.strided:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.device)
        number = storage_id(tensor) if self._shared and tensor.layout == torch.strided else 0
        if number not in self._shared:
            return copy_tensor(tensor, self.device, self.non_blocking)
        memory = self._memories.get(number)
        if memory is None:
            raw = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
            memory = self._memories[number] = copy_tensor(raw, self.device, self.non_blocking)
        whole = torch.empty(0, dtype=tensor.dtype, device=self.device)
        whole.set_(memory.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
        whole = whole.conj() if tensor.is_conj() else whole
        return torch._neg_view(whole) if tensor.is_neg() else whole


_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_DEVICE_FORM = re.compile(r"[a-z0-9]+(:\d+)?")


@functools.lru_cache(maxsize=256)
def _names_a_device(text: str) -> bool:
    if not _DEVICE_FORM.fullmatch(text):
        return False
    try:
        return torch.device(text).type not in {"cpu", "meta"}
    except RuntimeError:
        return False
