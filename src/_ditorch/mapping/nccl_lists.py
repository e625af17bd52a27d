"""`torch.cuda.nccl`: collectives over a list of tensors, one on each device of this process.

torch's own Python code checks the arguments and calls functions of `torch._C` that only a build for cuda
has. These are here, in terms of copies and sums; copies between devices are queued by the device itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as fold
from types import ModuleType
from typing import Any

import torch

from _ditorch.mapping.patches import Patches
from _ditorch.mapping.target import Target
from _ditorch.mapping.unmapped import placeholder

__all__ = ["apply"]

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


def apply(patches: Patches, target: Target) -> None:
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
