"""Kernels that others compiled, launched on the device in the order of a stream.

    module = kernels.Module("libscale.so")
    module.kernel("scale").launch((x, ctypes.c_float(2.0)), grid=(x.numel(),))

What a module is, the vendor says: on the simulated chip a shared library of C functions (`dipu/host_kernel.h`). Libraries in C
and C++ have the same by `dipu/torch_dipu.h`.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence

import torch

from torch_dipu import _C
from torch_dipu.device_index import Device, device_index

__all__ = ["Argument", "Kernel", "Module", "available"]

# A tensor is passed as its address, an int as int64_t, a float as double; other C types as values of ctypes, or as their bytes.
Argument = torch.Tensor | bool | int | float | bytes | ctypes._SimpleCData | ctypes.Structure | ctypes.Array  # type: ignore[type-arg]

_INT64 = range(-(2**63), 2**63)


def available() -> bool:
    """Whether the vendor loads kernels that others compiled."""
    return _C.has_kernels()


class Kernel:
    """One kernel of a module, which it keeps loaded."""

    def __init__(self, module: Module, name: str, handle: int) -> None:
        self.module = module
        self.name = name
        self._handle = handle

    def launch(
        self,
        arguments: Sequence[Argument] = (),
        *,
        grid: Sequence[int] = (1,),
        block: Sequence[int] = (1,),
        shared_memory: int = 0,
        stream: torch.Stream | None = None,
    ) -> None:
        """Queues the kernel on the current stream of its device, or on the one given.

        The arguments are copied. Memory is the caller's to keep, as for any work on a stream: a tensor that another stream made
        is told by `Tensor.record_stream`.
        """
        index = self.module.device.index
        if stream is None:
            stream_id = torch.accelerator.current_stream(self.module.device).stream_id
        elif stream.device != self.module.device:
            raise ValueError(
                f"the kernel {self.name} is loaded on {self.module.device}, the stream is of {stream.device}"
            )
        else:
            stream_id = stream.stream_id
        values = [self._value(position, argument) for position, argument in enumerate(arguments)]
        sizes = [len(value) for value in values]
        dims = self._dims("grid", grid), self._dims("block", block)
        _C.kernel_launch(
            index, stream_id, self._handle, self.name, *dims, shared_memory, b"".join(values), sizes
        )

    def _dims(self, name: str, sizes: Sequence[int]) -> tuple[int, int, int]:
        if not 1 <= len(sizes) <= 3 or any(not 1 <= size < 2**32 for size in sizes):
            raise ValueError(
                f"the {name} of the kernel {self.name} is {tuple(sizes)}; expected one to three sizes from 1"
            )
        x, y, z = (*sizes, 1, 1)[:3]
        return x, y, z

    def _value(self, position: int, argument: Argument) -> bytes:
        if isinstance(argument, torch.Tensor):
            if argument.device != self.module.device:
                raise ValueError(
                    f"argument {position} of the kernel {self.name} is a tensor on {argument.device}; "
                    f"the kernel is loaded on {self.module.device}"
                )
            return bytes(ctypes.c_void_p(argument.data_ptr()))
        if isinstance(argument, bool):
            return bytes(ctypes.c_bool(argument))
        if isinstance(argument, int):
            if argument not in _INT64:
                raise ValueError(
                    f"argument {position} of the kernel {self.name} is {argument}, which int64_t cannot hold"
                )
            return bytes(ctypes.c_int64(argument))
        if isinstance(argument, float):
            return bytes(ctypes.c_double(argument))
        if isinstance(argument, (bytes, ctypes._SimpleCData, ctypes.Structure, ctypes.Array)) and len(
            value := bytes(argument)
        ):
            return value
        raise TypeError(
            f"argument {position} of the kernel {self.name} is {type(argument).__name__}; expected a tensor, a number, "
            "a value of ctypes, or bytes"
        )

    def __repr__(self) -> str:
        return f"<torch_dipu.kernels.Kernel {self.name} on {self.module.device}>"


class Module:
    """Kernels of one file, or of the bytes of one, on one device. Unloaded with its last reference, and that of its kernels."""

    def __init__(self, source: str | os.PathLike[str] | bytes, device: Device = None) -> None:
        self.device = torch.device("dipu", device_index(device))
        path = None if isinstance(source, bytes) else os.fspath(source)
        self._handle = _C.module_load(self.device.index, path, source if isinstance(source, bytes) else None)
        self._kernels: dict[str, int] = {}
        # A program that ends takes its modules with it: queued launches may still need them.
        weakref.finalize(self, _C.module_unload, self._handle).atexit = False

    def kernel(self, name: str) -> Kernel:
        """The kernel of this name; RuntimeError if the module has none."""
        if name not in self._kernels:
            self._kernels[name] = _C.module_function(self._handle, name)
        return Kernel(self, name, self._kernels[name])
