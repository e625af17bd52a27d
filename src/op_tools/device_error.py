"""An error of the device, met while a tool reads a tensor of the program."""

from __future__ import annotations


class DeviceError(Exception):
    """The device failed while a tool read a tensor of the program: that is the program's error, not the tool's."""

    def __init__(self, original: BaseException) -> None:
        super().__init__(str(original))
        self.original = original
