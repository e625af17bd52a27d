"""The distributed backend `dicl`: collectives of device tensors.

It runs over gloo. Where the vendor lets host code reach device memory, gloo works on the tensors themselves;
elsewhere they are copied to the host and back. Work queued on the device is waited for first, so a collective
sees finished tensors.
"""

# torch's stubs list several call forms for each collective and none for gloo; only the one that torch.distributed
# uses is overridden here.
# mypy: disable-error-code="override, attr-defined, assignment, call-arg"

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import ProcessGroup, Work

from torch_dipu import _C

NAME = "dicl"


class _Finished(Work):
    """A collective that is done when the call returns, as gloo is waited for."""

    def __init__(self, result: list[torch.Tensor]) -> None:
        super().__init__()
        self._result = result
        self._future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return self._future

    def result(self) -> list[torch.Tensor]:
        return self._result


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)


class _HostSide:
    """The tensors of one collective as gloo sees them."""

    def __init__(self) -> None:
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._by_alias = _C.has_alias()

    def down(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self.down(item) for item in value]
        if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
            return value
        if self._by_alias:
            return _C.cpu_alias(value)
        copy = value.detach().cpu()
        self._copies.append((value, copy))
        return copy

    def write_back(self) -> None:
        for device, copy in self._copies:
            device.copy_(copy)


def _each(collective: Callable[..., Work]) -> Callable[..., Work]:
    """The form of a collective that takes lists: one tensor after the other."""

    def coalesced(
        self: Any, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        for output, given in zip(outputs, inputs, strict=True):
            collective(self, output, given, opts)
        return _Finished(outputs)

    return coalesced


class DiclGroup(ProcessGroup):
    """A process group for device tensors over gloo's for host tensors."""

    supports_splitting = False

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._name = self._description = ""

    def getBackendName(self) -> str:
        return NAME

    def _get_backend(self, device: Any) -> Any:
        """Torch asks for it when the group is bound to a device; this group is its own backend."""
        return self

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def _run(
        self, call: Callable[..., Work], written: Any, *others: Any, options: tuple[Any, ...] = ()
    ) -> Work:
        tensors = [*_leaves(written), *_leaves(list(others))]
        for index in {t.device.index for t in tensors if t.device.type == "dipu"}:
            _C.synchronize(index)
        host = _HostSide()
        with torch.no_grad():
            call(*[host.down(argument) for argument in (written, *others)], *options).wait()
            host.write_back()
        return _Finished(list(_leaves(written)))

    def _reduced(
        self, call: Callable[..., Work], tensors: list[torch.Tensor], options: Any, kept: bool
    ) -> Work:
        """gloo has no average: it sums, and the result is divided where it is kept."""
        average = options.reduceOp == dist.ReduceOp.AVG
        if average:
            options.reduceOp = dist.ReduceOp.SUM
        work = self._run(call, tensors, options=(options,))
        for tensor in tensors if average and kept else ():
            fractional = tensor.is_floating_point() or tensor.is_complex()
            tensor.div_(self.size(), rounding_mode=None if fractional else "floor")
        return work

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        return self._reduced(self._gloo.allreduce, tensors, opts or c10d.AllreduceOptions(), kept=True)

    def _allreduce_one(self, tensor: torch.Tensor, opts: Any) -> None:
        """With the options of another collective."""
        plain = c10d.AllreduceOptions()
        plain.reduceOp = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        self.allreduce([tensor], plain)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        for tensor in tensors:
            self._allreduce_one(tensor, opts)
        return _Finished(tensors)

    def reduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        opts = opts or c10d.ReduceOptions()
        return self._reduced(self._gloo.reduce, tensors, opts, kept=opts.rootRank == self.rank())

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        return self._run(self._gloo.broadcast, tensors, options=(opts or c10d.BroadcastOptions(),))

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        return self._run(self._gloo.allgather, outputs, inputs, options=(opts or c10d.AllgatherOptions(),))

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        if not output.is_contiguous():
            raise ValueError("all_gather_into_tensor: the output must be contiguous")
        parts = [part.view(input.shape) for part in output.view(-1).chunk(self.size())]
        self.allgather([parts], [input.contiguous()])
        return _Finished([output])

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        return self._run(self._gloo.gather, outputs, inputs, options=(opts or c10d.GatherOptions(),))

    def scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None
    ) -> Work:
        return self._run(self._gloo.scatter, outputs, inputs, options=(opts or c10d.ScatterOptions(),))

    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None
    ) -> Work:
        for output, parts in zip(outputs, inputs, strict=True):
            stacked = torch.stack([part.reshape(output.shape) for part in parts])
            self._reduce_scatter_rows(output, stacked, opts)
        return _Finished(outputs)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        self._reduce_scatter_rows(output, input.reshape(self.size(), *output.shape).clone(), opts)
        return _Finished([output])

    def _reduce_scatter_rows(self, output: torch.Tensor, rows: torch.Tensor, opts: Any) -> None:
        """gloo has no reduce-scatter for every dtype: all-reduce, then keep the own row."""
        self._allreduce_one(rows, opts)
        output.copy_(rows[self.rank()])

    allgather_into_tensor_coalesced = _each(_allgather_base)
    reduce_scatter_tensor_coalesced = _each(_reduce_scatter_base)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        """gloo exchanges one flat tensor only: the lists are laid end to end."""
        received = torch.empty(
            sum(t.numel() for t in outputs), dtype=outputs[0].dtype, device=outputs[0].device
        )
        sent = torch.cat([t.reshape(-1) for t in inputs])
        self.alltoall_base(received, sent, [t.numel() for t in outputs], [t.numel() for t in inputs])
        for output, part in zip(outputs, received.split([t.numel() for t in outputs]), strict=True):
            output.copy_(part.view(output.shape))
        return _Finished(outputs)

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> Work:
        return self._run(
            self._gloo.alltoall_base,
            output,
            input,
            options=(output_splits, input_splits, opts or c10d.AllToAllOptions()),
        )

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Work:
        return self._run(self._gloo.send, tensors, options=(dst, tag))

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Work:
        return self._run(self._gloo.recv, tensors, options=(src, tag))

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Work:
        return self._run(self._gloo.recv_anysource, tensors, options=(tag,))

    def barrier(self, opts: Any = None) -> Work:
        self._gloo.barrier(opts or c10d.BarrierOptions()).wait()
        return _Finished([])

    # torch 2.13 calls the same collectives by new names
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base


def register() -> None:
    """Registers the backend in torch.distributed, for device tensors and (so that mixed programs work) host tensors."""
    if NAME in dist.Backend.backend_list:
        return

    def create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> ProcessGroup:
        return DiclGroup(store, rank, size, timeout)

    dist.Backend.register_backend(NAME, create, extended_api=False, devices=["dipu", "cpu"])
