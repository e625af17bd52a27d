"""libdiopi_direct: the runtime functions of DIOPI without a framework (csrc/direct), as ctypes."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint64, c_void_p
from functools import cache
from pathlib import Path

from diopi.library.errors import LibraryError

FOLDER = Path(__file__).resolve().parent.parent / "lib"

_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "problem": (c_char_p, []),
    "install": (c_int, []),
    "installed": (c_int, []),
    "uninstall": (None, []),
    "machine_create": (c_void_p, [c_void_p, c_int]),
    "machine_destroy": (None, [c_void_p]),
    "allocate": (c_int, [c_void_p, c_size_t, POINTER(c_void_p)]),
    "free": (c_int, [c_void_p, c_void_p]),
    "write": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "read": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "watch_required": (None, [c_void_p, c_int]),
    "fill": (c_int, [c_void_p, c_void_p, c_int, c_size_t]),
    "synchronize": (c_int, [c_void_p]),
    "context_create": (c_void_p, [c_void_p]),
    "context_destroy": (None, [c_void_p]),
    "guard": (c_void_p, [c_char_p]),
    "context_aim": (None, [c_void_p, c_void_p]),
    "context_thrown": (c_char_p, [c_void_p]),
    "context_owned": (c_int64, [c_void_p]),
    "context_required": (c_void_p, [c_void_p, c_int64]),
    "required_damage": (c_int, [c_void_p, c_void_p, POINTER(c_int64), POINTER(c_int64)]),
    "tensor_create": (
        c_void_p,
        [c_void_p, c_int64, c_void_p, c_void_p, c_int, c_int, c_int, c_void_p, c_int64, c_int64],
    ),
    "tensor_make_sparse": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "tensor_destroy": (None, [c_void_p]),
    "generator_create": (c_void_p, [c_void_p, c_char_p, c_size_t, c_uint64, c_uint64]),
    "generator_state": (c_size_t, [c_void_p, c_char_p, c_size_t]),
    "generator_destroy": (None, [c_void_p]),
}


class Direct:
    """The loaded library; its functions are attributes without their common prefix."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        self._loaded = loaded
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(loaded, f"diopi_direct_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> ctypes._NamedFuncPointer:
        raise AttributeError(name)  # what __init__ has not set does not exist

    def reason(self) -> str:
        """Why the last function of this thread failed."""
        return (self.problem() or b"").decode(errors="replace")

    def own_the_table(self) -> None:
        """Makes the runtime functions these; LibraryError if a framework has them."""
        if self.install() != 0:
            raise LibraryError(_OCCUPIED)


_OCCUPIED = (
    "the runtime functions of DIOPI belong to torch_dipu in this process, so a library cannot be called directly. "
    "Do it in a fresh process in which torch_dipu is not imported: set TORCH_DEVICE_BACKEND_AUTOLOAD=0 before importing torch."
)


def _framework_is_loaded() -> bool:
    try:
        ctypes.CDLL("libtorch_dipu.so", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return True


@cache
def direct() -> Direct:
    """libdiopi_direct, loaded once, with libdiopirt in the process' global scope."""
    if _framework_is_loaded():
        raise LibraryError(_OCCUPIED)
    for name in ("libdiopirt.so", "libdiopi_direct.so"):
        if not (FOLDER / name).is_file():
            raise LibraryError(f"{FOLDER / name} does not exist. Was the project built (pip install)?")
    ctypes.CDLL(str(FOLDER / "libdiopirt.so"), mode=os.RTLD_GLOBAL | os.RTLD_NOW)
    return Direct(ctypes.CDLL(str(FOLDER / "libdiopi_direct.so"), mode=os.RTLD_LOCAL | os.RTLD_NOW))
