"""Collectives that a backend does not have, or not in the precision wanted.

Averages: `ReduceOp.AVG` is nccl's own; elsewhere it is a sum and a division. Precision: with
`DITORCH_FP32_COLLECTIVES=1`, or after `use_fp32(True)`, sums of half-precision tensors are made in float32
and rounded once at the end. Both change the call and finish its result: at once, or when an asynchronous
call is waited for. The functions of `torch.distributed` are wrapped only while one of the two is needed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed

from _ditorch.mapping.patches import Patches
from _ditorch.mapping.translation import Target
from _ditorch.settings import FP32_COLLECTIVES

__all__ = ["Finish", "PostprocessedWork", "apply", "fp32_in_use", "use_fp32"]

_HALF_DTYPES = (torch.float16, torch.bfloat16)


class _Rules:
    """What is changed at this moment, and the wrappers that do it."""

    def __init__(self) -> None:
        self.fp32 = False
        self.without_average = ""
        """The type of the device whose backend has no AVG."""
        self.pending: dict[Any, list[Finish]] = {}
        """For each group that is collecting calls: how to finish them."""
        self._patches: Patches | None = None
        self._lock = threading.RLock()

    def change(self, *, fp32: bool | None = None, without_average: str | None = None) -> None:
        with self._lock:
            self.fp32 = self.fp32 if fp32 is None else fp32
            self.without_average = self.without_average if without_average is None else without_average
            if self.fp32 or self.without_average:
                if self._patches is None:
                    self._patches = Patches()
                    _wrap_all(self._patches)
                self._patches.install()
            elif self._patches is not None:
                self._patches.remove()

    def plan(self, tensor: torch.Tensor, op: Any, group: Any) -> _Plan | None:
        """How to carry out a reduction of this tensor; None to leave it as it is."""
        kinds = torch.distributed.ReduceOp
        emulate = op == kinds.AVG and tensor.device.type == self.without_average
        widen = self.fp32 and tensor.dtype in _HALF_DTYPES and op in (kinds.SUM, kinds.AVG, kinds.PRODUCT)
        if not (emulate or widen) or torch.distributed.get_rank(group) < 0:
            return None
        return _Plan(kinds.SUM if emulate else op, emulate, widen, torch.distributed.get_world_size(group))


@dataclass(frozen=True)
class _Plan:
    """One reduction: the operation to ask for, and what remains to be done with its result."""

    op: Any
    divide: bool
    widen: bool
    size: int

    def source(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() if self.widen else tensor

    def finish(self, found: torch.Tensor, wanted: torch.Tensor) -> None:
        with torch.no_grad():
            if self.divide and (found.is_floating_point() or found.is_complex()):
                found.div_(self.size)
            elif self.divide:
                found.copy_(found.div(self.size, rounding_mode="trunc"))
            if found is not wanted:
                wanted.copy_(found)


_RULES = _Rules()


def use_fp32(on: bool = True) -> None:
    """Make sums of half-precision tensors in float32, from the next collective on; `False` stops it."""
    _RULES.change(fp32=on)


def fp32_in_use() -> bool:
    return _RULES.fp32


def apply(patches: Patches, target: Target) -> None:
    """Follow the mapping: averages are emulated, and the setting holds, as long as it is installed."""
    if not torch.distributed.is_available():
        return
    asked_for = FP32_COLLECTIVES.get_or_default()
    emulated = "" if target.averages or target.process_group is None else target.device_type

    def follow() -> None:
        if not patches.installed:
            _RULES.change(without_average="", fp32=False if asked_for else None)
        else:
            _RULES.change(without_average=emulated, fp32=True if asked_for else None)

    patches.after_change(follow)


def _wrap_all(patches: Patches) -> None:
    c10d = torch.distributed.distributed_c10d
    wrappers: dict[str, Callable[[Any], Any]] = {
        "all_reduce": _in_place,
        "reduce": _in_place,
        "all_reduce_coalesced": _in_place_list,
        "reduce_scatter": _scattering,
        "reduce_scatter_tensor": _scattering,
        "reduce_scatter_single": _scattering,  # its name from torch 2.13 on
        "_reduce_scatter_base": _scattering,
        "_coalescing_manager": _collecting,
    }
    for name, wrap in wrappers.items():
        original = getattr(c10d, name, None)
        if original is None:
            continue
        also = [torch.distributed] if vars(torch.distributed).get(name) is original else []
        patches.wrap(c10d, wrap(original), name, also=also)
    parallel = torch.nn.parallel.DistributedDataParallel
    patches.wrap(parallel, _with_hook(parallel.__init__), "__init__")


def _done(work: Any, group: Any, finish: Finish) -> Any:
    """Finish now, when the group has collected its calls, or when the work is waited for."""
    if _RULES.pending:
        group = group or torch.distributed.group.WORLD
        if group in _RULES.pending:
            _RULES.pending[group].append(finish)
            return work
    if work is None:
        finish()
        return None
    return PostprocessedWork(work, finish)


def _in_place(original: Callable[..., Any]) -> Callable[..., Any]:
    """all_reduce(tensor, op, group, async_op), reduce(tensor, dst, op, group, async_op, group_dst)"""
    ranks = () if original.__name__ == "all_reduce" else ("dst",)
    names = ("tensor", *ranks, "op", "group", "async_op", "group_dst")

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        tensor, group = given["tensor"], given.get("group")
        plan = _RULES.plan(tensor, given.get("op", torch.distributed.ReduceOp.SUM), group)
        if plan is None:
            return original(*args, **kwargs)
        source = plan.source(tensor)
        work = original(**(given | {"tensor": source, "op": plan.op}))
        return _done(work, group, lambda: plan.finish(source, tensor))

    return wrapper


def _in_place_list(original: Callable[..., Any]) -> Callable[..., Any]:
    """all_reduce_coalesced(tensors, op, group, async_op)"""

    def wrapper(tensors: Any, op: Any = None, group: Any = None, async_op: bool = False) -> Any:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        op = torch.distributed.ReduceOp.SUM if op is None else op
        plan = _RULES.plan(tensors[0], op, group) if tensors else None
        if plan is None:
            return original(tensors, op, group, async_op)
        sources = [plan.source(tensor) for tensor in tensors]

        def finish() -> None:
            for source, tensor in zip(sources, tensors, strict=True):
                plan.finish(source, tensor)

        return _done(original(sources, plan.op, group, async_op), group, finish)

    return wrapper


def _scattering(original: Callable[..., Any]) -> Callable[..., Any]:
    """reduce_scatter(output, input_list, op, ...) and reduce_scatter_tensor(output, input, op, ...)"""
    source_name = "input_list" if original.__name__ == "reduce_scatter" else "input"
    names = ("output", source_name, "op", "group", "async_op")

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        output, source, group = given["output"], given[source_name], given.get("group")
        plan = _RULES.plan(output, given.get("op", torch.distributed.ReduceOp.SUM), group)
        if plan is None:
            return original(*args, **kwargs)
        several = isinstance(source, (list, tuple))
        source = [plan.source(part) for part in source] if several else plan.source(source)
        result = plan.source(output)
        work = original(**(given | {"output": result, source_name: source, "op": plan.op}))
        return _done(work, group, lambda: plan.finish(result, output))

    return wrapper


def _collecting(original: Callable[..., Any]) -> Callable[..., Any]:
    """`with _coalescing_manager(...)`: the calls inside run when the block ends, and are finished after that."""

    @contextlib.contextmanager
    def wrapper(group: Any = None, device: Any = None, async_ops: bool = False) -> Iterator[Any]:
        group = group or torch.distributed.group.WORLD
        finishes: list[Finish] = []
        _RULES.pending[group] = finishes
        try:
            with original(group, device, async_ops) as manager:
                yield manager
        finally:
            del _RULES.pending[group]
        if async_ops and manager.works:
            # The works are waited for in their order, so the last one knows that all are done.
            manager.works[-1] = PostprocessedWork(manager.works[-1], *finishes)
        else:
            for finish in finishes:
                finish()

    return wrapper


def _with_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    """DistributedDataParallel reduces in C++, past the functions above: its own way in is a hook."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if _RULES.fp32 and any(parameter.dtype in _HALF_DTYPES for parameter in self.module.parameters()):
            self.register_comm_hook(self.process_group, _reduce_in_fp32)

    return init


def _reduce_in_fp32(group: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """What DistributedDataParallel does by itself, in float32: divide, sum, and round once."""
    gradients: torch.Tensor = bucket.buffer()
    sums = gradients.float().div_(group.size())
    work = torch.distributed.all_reduce(sums, group=group, async_op=True)
    finished: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda _: gradients.copy_(sums))
    return finished


# torch compares the annotation of a hook with its own class, and the text of ours is none.
_reduce_in_fp32.__annotations__.clear()


# -- a collective that runs by itself and whose result still has to be postprocessed ---------------------------

Finish = Callable[[], None]

# A torch without distributed training has no such class, and then nobody makes one of ours.
_Work: Any = getattr(torch.distributed, "Work", object)


class PostprocessedWork(_Work):  # type: ignore[misc]
    """Stands for `work`; whoever first learns that it is done finishes the result, once."""

    def __init__(self, work: Any, *finishes: Finish) -> None:
        super().__init__()
        self._work = work
        self._finishes = list(finishes)
        self._lock = threading.Lock()
        self._future: Any = None

    def wait(self, *args: Any, **kwargs: Any) -> bool:
        done: bool = self._work.wait(*args, **kwargs)
        self._finish()
        return done

    def synchronize(self) -> None:
        self._work.synchronize()
        self._finish()

    def is_completed(self) -> bool:
        if not self._work.is_completed():
            return False
        self._finish()
        return True

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def exception(self) -> Any:
        return self._work.exception()

    def result(self) -> Any:
        self._finish()
        return self._work.result()

    def get_future(self) -> Any:
        if self._future is None:
            self._future = self._work.get_future().then(self._finished_value)
        return self._future

    def _finished_value(self, future: Any) -> Any:
        value = future.value()
        self._finish()
        return value

    def _finish(self) -> None:
        # The lock is held until all is finished: a second thread that waits must not return before.
        with self._lock:
            finishes, self._finishes = self._finishes, []
            for finish in finishes:
                finish()
