"""Which way the calls of an operator took, for tests."""

from __future__ import annotations

from collections.abc import Callable

import torch_dipu


def counted(name: str) -> dict[str, int]:
    return torch_dipu.dipu.op_counts().get(f"aten::{name}", {"diopi": 0, "alias": 0, "copy": 0})


def ways(name: str, run: Callable[[], object]) -> tuple[int, int]:
    """How many calls of an operator went to DIOPI and to the fallback while `run` ran."""
    before = counted(name)
    run()
    after = counted(name)
    return after["diopi"] - before["diopi"], sum(after[w] - before[w] for w in ("alias", "copy"))
