"""The names of cuda lead to the plain CPU: as few of them as LMDeploy uses, made with ditorch's machinery.

Unlike ditorch's mapping for a device, this one does not pretend: `torch.cuda.is_available()` stays false, and tensors do
not say that they are on cuda. So other libraries in the process go on using the CPU as they did.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from dlinfer.framework.lmdeploy.devices import cpu_memory

if TYPE_CHECKING:
    from _ditorch.mapping.patches import Patches
    from _ditorch.mapping.translation import Target

_NEW_METHODS = ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros")


@functools.cache
def install() -> Patches:
    """Make the names; once in a process. The changes can be taken back with the answer's `remove`."""
    cpu_memory()  # what is wrong is said now, not when LMDeploy asks
    from _ditorch.mapping import compiler, factories, overrides
    from _ditorch.mapping.patches import Patches
    from _ditorch.mapping.translation import Target

    patches = Patches()
    target = Target(device_type="cpu", module=torch.cpu)
    factories.apply(patches, target)
    _methods(patches, target)
    _cuda_module(patches)
    overrides.apply(patches)
    # The compiler decides by identity what a function is, so its tables are made from torch's own functions.
    compiler.build_rules()
    patches.install()
    return patches


def _methods(patches: Patches, target: Target) -> None:
    from _ditorch.mapping.translation import translate_first, translate_keyword, translate_leading

    tensor = torch.Tensor
    ways: dict[str, Callable[..., Any]] = dict.fromkeys(_NEW_METHODS, translate_keyword)
    for name, way in (ways | {"to": translate_first}).items():
        patches.wrap(tensor, way(getattr(tensor, name), target), name)

    def cuda(
        self: torch.Tensor, device: Any = None, non_blocking: bool = False, **kwargs: Any
    ) -> torch.Tensor:
        return self

    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        return self  # no copy engine reads it

    patches.wrap(tensor, cuda)
    patches.wrap(tensor, pin_memory)
    # nn.Module.to reads its arguments with this private function.
    parse = translate_leading(torch._C._nn._parse_to, target.translate)
    patches.wrap(torch._C._nn, parse, "_parse_to")


class _Stream(torch.cpu.Stream):
    """Work is done when the call that does it returns, so a stream is always done."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()


_STREAM = _Stream()


class _Event:
    """A moment; what was asked for before it has been done."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._moment = 0.0

    def record(self, stream: Any = None) -> None:
        self._moment = time.perf_counter()

    def query(self) -> bool:
        return True

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: _Event) -> float:
        """Milliseconds."""
        return (end._moment - self._moment) * 1e3


def memory_for_engine(device: Any = None) -> tuple[int, int]:
    """Free and total bytes, by which LMDeploy sizes its caches.

    It takes most of what is free, and fills it. A GPU is there for that; the CPU's memory belongs to all programs, so what
    is said to be free is limited.
    """
    import psutil  # one of LMDeploy's dependencies

    most = cpu_memory()
    memory = psutil.virtual_memory()
    return min(memory.available, _left_in_container(), most), min(memory.total, most)


def _left_in_container() -> int:
    """What is left of a container's memory; the machine's own figures do not know of it."""
    group = Path("/sys/fs/cgroup")
    try:
        most, used = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        return int(most) - int(used)
    except (OSError, ValueError):  # no such control group, or "max": no limit
        return sys.maxsize


def _properties(device: Any = None) -> SimpleNamespace:
    return SimpleNamespace(
        name="cpu",
        major=0,
        minor=0,
        total_memory=memory_for_engine()[1],
        multi_processor_count=os.cpu_count(),
        uuid="cpu",
        gcnArchName="cpu",  # inductor reads it from a torch that was built without cuda
    )


def _nothing(*args: Any, **kwargs: Any) -> None: ...


def _cuda_module(patches: Patches) -> None:
    here = torch.cpu
    names: dict[str, Any] = {
        "Stream": _Stream,
        "Event": _Event,
        "current_stream": lambda device=None: _STREAM,
        "default_stream": lambda device=None: _STREAM,
        "stream": here.stream,
        "synchronize": here.synchronize,
        "empty_cache": _nothing,
        "set_device": here.set_device,
        "current_device": lambda: 0,
        "mem_get_info": memory_for_engine,
        "get_device_properties": _properties,
        "get_device_name": lambda device=None: "cpu",
    }
    for name, replacement in names.items():
        patches.set(torch.cuda, name, replacement)
