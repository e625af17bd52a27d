"""The distributed backend `dicl`: collectives of device tensors.

The backend itself is C++ (csrc/distributed): calls return at once, and streams wait. Here it is registered with torch.
Between hosts and processes the bytes travel through gloo, which is made here because torch's wheel has no headers of it.
"""

from __future__ import annotations

import functools
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from torch_dipu import _C

NAME = "dicl"


def _over_gloo(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)


def _store_owner() -> str:
    """Whom to look at when the store does not answer."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true":
        return "it is served by the agent of torchrun on the node of rank 0"
    return "it is served by the process of rank 0, unless another was named when the group was made"


def create(options: Any, backend_options: Any) -> Any:
    """The backend of one group, as torch's extended interface of backends asks for it."""
    _C.set_store_owner(_store_owner())
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    return _C.make_backend(
        options.store, options.group_id, options.group_rank, options.group_size, ranks, options.timeout
    )


@functools.cache
def bind() -> None:
    """Makes the compiled backend ready; it is registered under a name afterwards."""
    _C.bind_distributed()
    _C.set_host_backend_factory(_over_gloo)


def register() -> None:
    """Registers the backend in torch.distributed, for device tensors and (so that mixed programs work) host tensors."""
    if NAME in dist.Backend.backend_list:
        return
    bind()
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["dipu", "cpu"])
    _name_the_default()


def _name_the_default() -> None:
    """`init_process_group()`: torch finds the backend, but calls the group's default one gloo, for which DDP asks."""
    original = distributed_c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        if backend is None and kwargs.get("device_id") is None and not args:
            accelerator = torch._C._get_accelerator()
            backend = NAME if accelerator.type == "dipu" else None
        original(backend, *args, **kwargs)

    distributed_c10d.init_process_group = init_process_group
    dist.init_process_group = init_process_group
