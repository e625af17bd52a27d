"""The library of the vendor `cpp`, as far as Python names it. Kernels are found by the names of operators."""

from collections.abc import Callable
from typing import Any

def cpu_capability() -> str: ...
def __getattr__(name: str) -> Callable[..., Any]: ...
