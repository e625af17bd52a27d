"""Memory of the device a library works on."""

from __future__ import annotations

import ctypes

from diopi.library.direct import direct
from diopi.library.errors import LibraryError


class LibraryMemory:
    """Device memory through the vendor's table (include/dipu/vendor.h), or host memory where there is none."""

    def __init__(self, vendor_table: int | None, device: int = 0) -> None:
        self.on_device = vendor_table is not None
        self.machine: int = direct().machine_create(vendor_table, device)
        if not self.machine:
            raise LibraryError(direct().reason())

    def allocate(self, nbytes: int) -> int:
        """The address of new memory; free it with `free`."""
        pointer = ctypes.c_void_p()
        self._check(direct().allocate(self.machine, nbytes, ctypes.byref(pointer)))
        return pointer.value or 0

    def free(self, pointer: int) -> None:
        """Gives memory back."""
        if pointer:
            self._check(direct().free(self.machine, pointer))

    def write(self, pointer: int, host_address: int, nbytes: int) -> None:
        """Copies from the host to the device."""
        self._check(direct().write(self.machine, pointer, host_address, nbytes))

    def read(self, pointer: int, host_address: int, nbytes: int) -> None:
        """Copies from the device to the host."""
        self._check(direct().read(self.machine, host_address, pointer, nbytes))

    def fill(self, pointer: int, byte: int, nbytes: int) -> None:
        """Sets every byte."""
        self._check(direct().fill(self.machine, pointer, byte, nbytes))

    def watch_required(self, byte: int) -> None:
        """Memory that the library asks for by itself holds this byte at first and lies between guards, so that
        `Answer.faults` tells who wrote beside it; -1: neither."""
        direct().watch_required(self.machine, byte)

    def synchronize(self) -> None:
        """Waits for the work of the library; LibraryError if some of it failed."""
        self._check(direct().synchronize(self.machine))

    @staticmethod
    def _check(status: int) -> None:
        if status != 0:
            raise LibraryError(direct().reason())
