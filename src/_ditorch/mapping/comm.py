"""`torch.cuda.comm` and `torch.cuda.nccl`: copies and collectives between the devices of one process.

They are what `nn.DataParallel` is made of. torch checks the arguments in Python and calls functions of `torch._C` that only a
build for cuda has, and only for cuda. These take their place, in terms of copies and sums; every copy runs on the current
streams of its two devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce as fold
from types import ModuleType
from typing import Any

import torch

from _ditorch.mapping.patches import Patches
from _ditorch.mapping.translation import Target
from _ditorch.mapping.unmapped import placeholder

__all__ = ["apply"]


def apply(patches: Patches, target: Target) -> None:
    _apply_comm(patches, target)
    _apply_nccl(patches, target)


# -- torch.cuda.comm -------------------------------------------------------------------------------------------

_CPU = -1


def _apply_comm(patches: Patches, target: Target) -> None:
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
        return [output.copy_(tensor, non_blocking=True) for output in out]

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
        chunks = tensor.split([output.size(dim) for output in out], dim)
        return [output.copy_(chunk, non_blocking=True) for output, chunk in zip(out, chunks, strict=True)]

    def gather(self, tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
        where = self._device(destination)
        return torch.cat([tensor.to(where, non_blocking=True) for tensor in tensors], dim)

    def gather_out(self, tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
        slices = out.split([tensor.size(dim) for tensor in tensors], dim)
        for part, tensor in zip(slices, tensors, strict=True):
            part.copy_(tensor, non_blocking=True)
        return out


# -- torch.cuda.nccl: collectives over a list of tensors, one on each device -----------------------------------

_Tensors = Sequence[torch.Tensor]

# The numbers that torch.cuda.nccl hands on are nccl's own (ncclRedOp_t).
_REDUCTIONS: dict[int, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    0: torch.add,
    1: torch.mul,
    2: torch.maximum,
    3: torch.minimum,
    4: torch.add,
}
_AVERAGE = 4


def _apply_nccl(patches: Patches, target: Target) -> None:
    # torch._C is private, but it is the one seam: the public functions above it stay torch's own.
    for function in _functions():
        patches.set(torch._C, function.__name__, function)
    nccl: ModuleType = torch.cuda.nccl
    for name in ("version", "unique_id", "init_rank"):
        patches.set(nccl, name, placeholder(f"nccl.{name}", getattr(nccl, name), target.device_type))


def _functions() -> tuple[Callable[..., Any], ...]:
    def _nccl_all_reduce(inputs: _Tensors, outputs: _Tensors, op: int, streams: Any, comms: Any) -> None:
        result = _combined(inputs, op)
        for output in outputs:
            output.copy_(result)

    def _nccl_reduce(
        inputs: _Tensors, output: torch.Tensor, root: int, op: int, streams: Any, comms: Any
    ) -> None:
        output.copy_(_combined(inputs, op))

    def _nccl_broadcast(inputs: _Tensors, root: int, streams: Any, comms: Any) -> None:
        for number, tensor in enumerate(inputs):
            if number != root:
                tensor.copy_(inputs[root])

    def _nccl_all_gather(inputs: _Tensors, outputs: _Tensors, streams: Any, comms: Any) -> None:
        for output in outputs:
            parts = output.view(len(inputs), *inputs[0].shape)
            for part, tensor in zip(parts, inputs, strict=True):
                part.copy_(tensor)

    def _nccl_reduce_scatter(inputs: _Tensors, outputs: _Tensors, op: int, streams: Any, comms: Any) -> None:
        parts = _combined(inputs, op).view(len(outputs), *outputs[0].shape)
        for output, part in zip(outputs, parts, strict=True):
            output.copy_(part)

    return _nccl_all_reduce, _nccl_reduce, _nccl_broadcast, _nccl_all_gather, _nccl_reduce_scatter


def _combined(tensors: _Tensors, op: int) -> torch.Tensor:
    """All tensors taken together, on the first one's device."""
    if op not in _REDUCTIONS:
        raise ValueError(f"{op} is no reduction; expected 0 sum, 1 product, 2 maximum, 3 minimum, 4 average")
    with torch.no_grad():
        first, *others = tensors
        result = fold(_REDUCTIONS[op], (other.to(first.device) for other in others), first.clone())
        return result / len(tensors) if op == _AVERAGE else result
