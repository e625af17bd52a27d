"""Says what is wrong with a file that is to be loaded, before the system's loader does so less clearly."""

from __future__ import annotations

import platform
import struct
from pathlib import Path

from diopi.library.errors import LibraryError

_MACHINES = {
    3: "x86 (32 bit)",
    40: "arm (32 bit)",
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
    258: "loongarch64",
}
_THIS = {"x86_64": 62, "AMD64": 62, "aarch64": 183, "arm64": 183, "riscv64": 243, "loongarch64": 258}
_KINDS = {1: "an object file (.o)", 2: "a program", 4: "a core dump"}
_SHARED = 3


def _kind_of(head: bytes) -> str:
    if not head:
        return "is empty"
    if head.startswith(b"!<arch>"):
        return "is a static archive (.a)"
    if head.startswith(b"#!"):
        return "is a script"
    if head.startswith(b"MZ"):
        return "is a Windows library"
    if head[:4] in (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe"):
        return "is a macOS library"
    if b"\0" not in head:
        return "is a text file"
    return "is not an ELF file"


def check_shared_object(path: Path) -> None:
    """LibraryError unless `path` is an ELF shared object for this machine."""
    if not path.exists():
        raise LibraryError(f"there is no file {path}. Give the path of a DIOPI library (.so).")
    if path.is_dir():
        raise LibraryError(f"{path} is a folder. Give the path of the library (.so) in it.")
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise LibraryError(f"{path} cannot be read: {error.strerror}.") from None
    if head[:4] != b"\x7fELF" or len(head) < 20:
        what = "is cut off" if head[:4] == b"\x7fELF" else _kind_of(head)
        raise LibraryError(f"{path} {what}. Expected a shared object (.so, made with -shared).")
    order = "<" if head[5] == 1 else ">"
    kind, machine = struct.unpack_from(order + "HH", head, 16)
    wanted = _THIS.get(platform.machine())
    if wanted is not None and machine != wanted:
        name = _MACHINES.get(machine, f"machine number {machine}")
        raise LibraryError(f"{path} is made for {name}, but this machine is {platform.machine()}.")
    if kind != _SHARED:
        raise LibraryError(
            f"{path} is {_KINDS.get(kind, 'another kind of ELF file')}. Expected a shared object (made with -shared)."
        )
