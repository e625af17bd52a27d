"""Operator tools for any torch device: capture, compare, measure, fall back, cast, observe, check for overflow.

    import op_tools

    with op_tools.OpAutoCompare():
        train_one_step()

Everything here loads when it is first used; importing op_tools itself costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "OpCapture": "op_tools.tools.capture",
    "OpFallback": "op_tools.tools.fallback",
    "OpAutoCompare": "op_tools.tools.autocompare",
    "OpObserve": "op_tools.tools.observe",
    "OpTimeMeasure": "op_tools.tools.time_measure",
    "OpDtypeCast": "op_tools.tools.dtype_cast",
    "OpOverflowCheck": "op_tools.tools.overflow_check",
    "OpLayers": "op_tools.tools.layers",
    "MemoryMonitor": "op_tools.tools.memory",
    "apply_feature": "op_tools.features",
    "load": "op_tools.storage",
    "open_run": "op_tools.runs",
}

__all__ = ["__version__", *sorted(_HOME)]  # noqa: PLE0604

if TYPE_CHECKING:
    from op_tools.features import apply_feature as apply_feature
    from op_tools.runs import open_run as open_run
    from op_tools.storage import load as load
    from op_tools.tools.autocompare import OpAutoCompare as OpAutoCompare
    from op_tools.tools.capture import OpCapture as OpCapture
    from op_tools.tools.dtype_cast import OpDtypeCast as OpDtypeCast
    from op_tools.tools.fallback import OpFallback as OpFallback
    from op_tools.tools.layers import OpLayers as OpLayers
    from op_tools.tools.memory import MemoryMonitor as MemoryMonitor
    from op_tools.tools.observe import OpObserve as OpObserve
    from op_tools.tools.overflow_check import OpOverflowCheck as OpOverflowCheck
    from op_tools.tools.time_measure import OpTimeMeasure as OpTimeMeasure


def __getattr__(name: str) -> Any:
    value = getattr(importlib.import_module(_HOME[name]), name) if name in _HOME else _own_tool(name)
    if value is None:
        raise AttributeError(f"module 'op_tools' has no attribute {name!r}")
    globals()[name] = value
    return value


def _own_tool(name: str) -> Any:
    """A tool of the user's (OP_TOOLS_PATH), by the name of its class."""
    if not name[:1].isupper():  # modules of this package are asked for by the same way
        return None
    from op_tools.registry import tools

    return next((tool for tool in tools() if tool.__name__ == name), None)


def __dir__() -> list[str]:
    return sorted(__all__)
