"""The differentiable entries of torch's operator database as calls on a device, forward and backward."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from _ditorch.torch_tests.opinfo.inputs import Transfer
from dicore.workers import Done, Lost, WorkerPool

DEVICE = "dipu"
SEED = 1234
# They ask for tensors of other kinds than plain ones, or start threads and processes of their own.
_NOT_RUN = re.compile(r"sparse\..*|to_sparse|masked_.*sparse.*")


@cache
def database() -> dict[str, Any]:
    """Entries that have gradients in float32, by name."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {
        op.full_name: op
        for op in op_db
        if op.supports_autograd and torch.float32 in op.dtypes and not _NOT_RUN.fullmatch(op.full_name)
    }


class Sample:
    """One call of an entry on the device, from inputs that are the same each time."""

    def __init__(self, op: Any, sample: Any) -> None:
        self._op = op
        self._sample = sample
        moved = Transfer(DEVICE)
        self._args = moved((sample.input, *sample.args))
        self._kwargs = moved(dict(sample.kwargs))
        self.leaves = [
            leaf
            for leaf in tree_leaves((self._args, self._kwargs))
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]

    def forward(self) -> list[torch.Tensor]:
        """The outputs that gradients go back from."""
        for leaf in self.leaves:
            leaf.grad = None
        torch.manual_seed(SEED)
        outputs = self._sample.output_process_fn_grad(self._op(*self._args, **self._kwargs))
        return [
            leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]

    def backward(self, outputs: list[torch.Tensor], weights: list[torch.Tensor]) -> None:
        torch.autograd.backward(outputs, weights)

    @staticmethod
    def weights(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Gradients of the outputs: no two elements alike."""
        generator = torch.Generator().manual_seed(SEED)
        drawn = [torch.randn(o.shape, dtype=o.dtype, generator=generator) for o in outputs]
        return [weight.to(output.device) for weight, output in zip(drawn, outputs, strict=True)]


def samples(name: str, count: int) -> Iterator[Sample]:
    """The first samples of an entry that have something to differentiate."""
    torch.manual_seed(SEED)
    op = database()[name]
    found = 0
    for sample in op.sample_inputs("cpu", torch.float32, requires_grad=True):
        ready = Sample(op, sample)
        if ready.leaves:
            yield ready
            found += 1
        if found == count:
            return


def prepare_worker() -> None:
    """What a worker does before its first task."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.empty(1, device=DEVICE)
    database()


def in_workers(
    entry: str, setup: Any, tasks: list[Any], workers: int, timeout: float
) -> Iterator[Done | Lost]:
    """Each task's end, as `entry` ("file:function" beside this one) answers it in a process of its own."""
    here = str(Path(__file__).resolve().parent)
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99"}
    with WorkerPool(
        entry, setup, workers=workers, timeout=timeout, environment=environment, tasks_per_worker=100
    ) as pool:
        pool.add("", tasks)
        for event in pool.run():
            if isinstance(event, Done | Lost):
                if isinstance(event, Lost) and event.task is None:
                    sys.exit(f"no worker could be started: {event.message}\n{event.log}")
                yield event
