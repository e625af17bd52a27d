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
    # torch._C is private, but it is the one seam: the public functions above it stay torch's own. Names and arguments are
    # those of torch/csrc/cuda/python_comm.cpp and python_nccl.cpp.
    for function in (*_copies(target), *_NCCL):
        patches.set(torch._C, function.__name__, function)
    nccl: ModuleType = torch.cuda.nccl
    if target.averages:
        patches.set(nccl, "version", lambda: _AS_CAPABLE_AS)
    refused = ("unique_id", "init_rank") if target.averages else ("version", "unique_id", "init_rank")
    for name in refused:
        patches.set(nccl, name, placeholder(f"nccl.{name}", getattr(nccl, name), target.device_type))


# -- torch.cuda.comm -------------------------------------------------------------------------------------------

_Tensors = Sequence[torch.Tensor]
_CPU = -1


def _copies(target: Target) -> tuple[Callable[..., Any], ...]:
    def at(index: int | None) -> torch.device:
        if index == _CPU:
            return torch.empty(0, device="cpu").device
        return target.device(target.module.current_device() if index is None else index)

    def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
        """The tensor itself where it is, copies elsewhere."""
        return [tensor.to(at(index), non_blocking=True) for index in devices]

    def _broadcast_out(tensor: torch.Tensor, out: _Tensors) -> list[torch.Tensor]:
        return [output.copy_(tensor, non_blocking=True) for output in out]

    def _broadcast_coalesced(
        tensors: _Tensors, devices: Sequence[int], buffer_size: int
    ) -> list[list[torch.Tensor]]:
        """All tensors for the first device, then all for the second; gathering them first would save no copy here."""
        return [[_broadcast(tensor, [index])[0] for tensor in tensors] for index in devices]

    def _scatter(
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
        pairs = zip(chunks, devices, strict=False)
        return [chunk.to(at(index), non_blocking=True) for chunk, index in pairs]

    def _scatter_out(
        tensor: torch.Tensor, out: _Tensors, dim: int, streams: Iterable[Any] | None = None
    ) -> list[torch.Tensor]:
        chunks = tensor.split([output.size(dim) for output in out], dim)
        return [output.copy_(chunk, non_blocking=True) for output, chunk in zip(out, chunks, strict=True)]

    def _gather(tensors: _Tensors, dim: int, destination: int | None) -> torch.Tensor:
        device = at(destination)
        return torch.cat([tensor.to(device, non_blocking=True) for tensor in tensors], dim)

    def _gather_out(tensors: _Tensors, out: torch.Tensor, dim: int) -> torch.Tensor:
        slices = out.split([tensor.size(dim) for tensor in tensors], dim)
        for part, tensor in zip(slices, tensors, strict=True):
            part.copy_(tensor, non_blocking=True)
        return out

    return (
        _broadcast,
        _broadcast_out,
        _broadcast_coalesced,
        _scatter,
        _scatter_out,
        _gather,
        _gather_out,
    )


# -- torch.cuda.nccl: collectives over a list of tensors, one on each device -----------------------------------

# Programs ask for the version to know what collectives can do. This one has bfloat16, averages and sums with a factor.
_AS_CAPABLE_AS = (2, 11, 4)

# The numbers that torch.cuda.nccl hands on are nccl's own (ncclRedOp_t).
_REDUCTIONS: dict[int, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    0: torch.add,
    1: torch.mul,
    2: torch.maximum,
    3: torch.minimum,
    4: torch.add,
}
_AVERAGE = 4


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


def _combined(tensors: _Tensors, op: int) -> torch.Tensor:
    """All tensors taken together, on the first one's device."""
    if op not in _REDUCTIONS:
        raise ValueError(f"{op} is no reduction; expected 0 sum, 1 product, 2 maximum, 3 minimum, 4 average")
    with torch.no_grad():
        first, *others = tensors
        result = fold(_REDUCTIONS[op], (other.to(first.device) for other in others), first.clone())
        return result / len(tensors) if op == _AVERAGE else result


_NCCL = (_nccl_all_reduce, _nccl_reduce, _nccl_broadcast, _nccl_all_gather, _nccl_reduce_scatter)
