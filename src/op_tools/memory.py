"""MemoryMonitor under the name that the documents give; `python -m op_tools.memory` watches a process from outside."""

from __future__ import annotations

import sys

from op_tools.tools.memory import MemoryMonitor, ProcessTree, device_memory, host_memory, main

__all__ = ["MemoryMonitor", "ProcessTree", "device_memory", "host_memory", "main"]

if __name__ == "__main__":
    sys.exit(main())
