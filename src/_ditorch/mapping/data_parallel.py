"""Copies between several devices of one process: what `nn.DataParallel` and `torch.cuda.comm` are made of.

torch checks the arguments in Python and copies in C++ functions that only a build for cuda has, and only for cuda.
These take their place; every copy runs on the current streams of its two devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from _ditorch.mapping.patches import Patches
from _ditorch.mapping.target import Target

__all__ = ["apply"]

_CPU = -1


def apply(patches: Patches, target: Target) -> None:
    copies = _Copies(target)
    # Private: names and arguments are those of torch/csrc/cuda/python_comm.cpp.
    patches.set(torch._C, "_broadcast", copies.broadcast)
    patches.set(torch._C, "_broadcast_out", copies.broadcast_out)
    patches.set(torch._C, "_broadcast_coalesced", copies.broadcast_coalesced)
    patches.set(torch._C, "_scatter", copies.scatter)
    patches.set(torch._C, "_scatter_out", copies.scatter_out)
    patches.set(torch._C, "_gather", copies.gather)
    patches.set(torch._C, "_gather_out", copies.gather_out)


class _Copies:
    def __init__(self, target: Target) -> None:
        self._target = target

    def _device(self, index: int | None) -> torch.device:
        if index == _CPU:
            return torch.empty(0, device="cpu").device
        return self._target.device(self._target.module.current_device() if index is None else index)

    def broadcast(self, tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
        """The tensor itself where it is, copies elsewhere."""
        return [tensor.to(self._device(index), non_blocking=True) for index in devices]

    def broadcast_out(self, tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [place.copy_(tensor, non_blocking=True) for place in out]

    def broadcast_coalesced(
        self, tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
    ) -> list[list[torch.Tensor]]:
        """All tensors for the first device, then all for the second; gathering them first would save no copy here."""
        return [[self.broadcast(tensor, [index])[0] for tensor in tensors] for index in devices]

    def scatter(
        self,
        tensor: torch.Tensor,
        devices: Sequence[int],
        chunk_sizes: Sequence[int] | None,
        dim: int,
        streams: Iterable[Any] | None = None,
    ) -> list[torch.Tensor]:
        """Parts of the tensor, one for each device; of a tensor too short for all, one for each of the first."""
        chunks = (
            tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(list(chunk_sizes), dim)
        )
        return [
            chunk.to(self._device(index), non_blocking=True)
            for chunk, index in zip(chunks, devices, strict=False)
        ]

    def scatter_out(
        self,
        tensor: torch.Tensor,
        out: Sequence[torch.Tensor],
        dim: int,
        streams: Iterable[Any] | None = None,
    ) -> list[torch.Tensor]:
        chunks = tensor.split([place.size(dim) for place in out], dim)
        return [place.copy_(chunk, non_blocking=True) for place, chunk in zip(out, chunks, strict=True)]

    def gather(self, tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
        where = self._device(destination)
        return torch.cat([tensor.to(where, non_blocking=True) for tensor in tensors], dim)

    def gather_out(self, tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
        places = out.split([tensor.size(dim) for tensor in tensors], dim)
        for place, tensor in zip(places, tensors, strict=True):
            place.copy_(tensor, non_blocking=True)
        return out
