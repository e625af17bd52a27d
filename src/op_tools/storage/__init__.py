"""Captures on disk: tensors and plain data only, written in the background, readable without running code.

store = CaptureStore("op_tools_results", kind="blobs", limits=Limits(total_bytes=10 << 30), on_saved=print)
store.put(call, "input", args, kwargs)      # call: CallInfo; never raises
store.put(call, "output", (result,))
store.close()
load(path)                                   # {"args": ..., "kwargs": ..., "__op_tools__": header}
"""

from __future__ import annotations

from op_tools.storage.call_info import CallInfo, Limits
from op_tools.storage.errors import (
    CaptureDamaged,
    CaptureError,
    CaptureMissing,
    CaptureRefused,
    CaptureUnsupported,
)
from op_tools.storage.load import export, load
from op_tools.storage.log import Log
from op_tools.storage.log_reader import read_log
from op_tools.storage.plain import Opaque, plain, restore
from op_tools.storage.snapshot import snapshot
from op_tools.storage.store import CaptureStore
from op_tools.storage.views import CsvView, write_csv, write_sqlite

__all__ = [
    "CallInfo",
    "CaptureDamaged",
    "CaptureError",
    "CaptureMissing",
    "CaptureRefused",
    "CaptureStore",
    "CaptureUnsupported",
    "CsvView",
    "Limits",
    "Log",
    "Opaque",
    "export",
    "load",
    "plain",
    "read_log",
    "restore",
    "snapshot",
    "write_csv",
    "write_sqlite",
]
