"""The engine under all tools: it sees every operator call once and hands it to the tools that want it."""

from op_tools.engine.call import Call, Origin
from op_tools.engine.core import ENGINE, Engine

__all__ = ["ENGINE", "Call", "Engine", "Origin"]
