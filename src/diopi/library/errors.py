"""What can go wrong here, and the codes a library answers with."""

from __future__ import annotations

from dicore.console import counted

SUCCESS = 0
ERROR = 1
NOT_IMPLEMENTED = 13

STATUS = {
    0: "diopiSuccess",
    1: "diopiErrorOccurred",
    2: "diopiNotInited",
    3: "diopiNoRegisteredStreamCreateFunction",
    4: "diopiNoRegisteredStreamDestoryFunction",
    5: "diopiNoRegisteredStreamSyncFunction",
    6: "diopiNoRegisteredDeviceMemoryMallocFunction",
    7: "diopiNoRegisteredDeviceMemoryFreeFunction",
    8: "diopiNoRegisteredDevice2DdeviceMemoryCopyFunction",
    9: "diopiNoRegisteredDevice2HostMemoryCopyFunction",
    10: "diopiNoRegisteredHost2DeviceMemoryCopyFunction",
    11: "diopiNoRegisteredGetLastErrorFunction",
    12: "diopi5DNotSupported",
    13: "diopiNoImplement",
    14: "diopiForceFallbackToCPU",
    1000: "diopiDtypeNotSupported",
}


class LibraryError(RuntimeError):
    """A library cannot be loaded, or a call cannot be made; says why and what to do."""


def status_name(code: int) -> str:
    """The name of a code in the C interface."""
    return STATUS.get(code, f"unknown code {code}")


def writes_out_of_bounds(name: str, front: int, behind: int) -> list[str]:
    """So many bytes in front of a tensor and behind it were written that must not be."""
    told = [f"wrote {counted(behind, 'byte')} behind the end of {name}"] if behind else []
    return told + ([f"wrote {counted(front, 'byte')} in front of {name}"] if front else [])
