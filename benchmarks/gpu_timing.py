"""Times work on a GPU: what is launched once, recorded as a graph, and replayed in turn with what it is compared with.

Launching from Python takes longer than small kernels do. A graph leaves only the kernels, which is also how a server runs them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Work = Callable[[], object]
WARM_UPS = 3


@dataclass(frozen=True)
class Timed:
    """Seconds of one call, round by round."""

    rounds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


def recorded(work: Work, device: torch.device) -> Work:
    """The same work as a CUDA graph; without a GPU the work itself."""
    if device.type != "cuda":
        return work
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def _seconds(work: Work, calls: int, device: torch.device) -> float:
    if device.type != "cuda":
        begin = time.perf_counter()
        for _ in range(calls):
            work()
        return (time.perf_counter() - begin) / calls
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    first.record()
    for _ in range(calls):
        work()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3 / calls


def in_turn(
    sides: Mapping[str, Work], device: torch.device, rounds: int = 15, slice_seconds: float = 0.02
) -> dict[str, Timed]:
    """Every side in every round, so that clocks and heat are the same for all; the first round of each is not counted."""
    calls = {}
    for name, work in sides.items():
        for _ in range(WARM_UPS):
            work()
        once = max(_seconds(work, 2, device), 1e-7)
        calls[name] = max(1, min(1000, round(slice_seconds / once)))
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, work in sides.items():
            found[name].append(_seconds(work, calls[name], device))
    return {name: Timed(times) for name, times in found.items()}
