"""Makes a generated module run: its text becomes functions, its kernels are compiled, its names get their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dicp.dynamo_bridge.executor import restrided
from dicp.loops.ir import LoopProgram
from dicp.vendor.TritonGraph.installation import INTERPRETED
from dicp.vendor.TritonGraph.launching import KernelLauncher, compile_all, loaded_module
from dicp.vendor.TritonGraph.program import IndexErrors, TritonProgram
from dicp.vendor.TritonGraph.source import GeneratedModule

__all__ = ["load"]


def load(
    made: GeneratedModule, program: LoopProgram, constants: Sequence[Tensor | None], device: torch.device
) -> TritonProgram:
    """`constants`: for each placeholder its tensor, where it is one. Raises CompileError."""
    names = loaded_module(made.source)
    launchers: list[KernelLauncher] = []
    for kernel in made.kernels:
        for launch in kernel.launches:
            dtypes = [dtype for _, dtype in kernel.pointers]
            launcher = KernelLauncher(names[launch.name], launch.warps, dtypes, len(kernel.numbers))
            names[f"launch_{launch.name}"] = launcher
            launchers.append(launcher)
    compile_all(launchers)
    names |= made.constants
    names |= {f"constant_{n}": value for n, value in enumerate(constants) if value is not None}
    names |= {
        "here": device,
        "empty": torch.empty,
        "empty_strided": torch.empty_strided,
        "restrided": as_promised,
        "current_stream": _stream_of(device),
    }
    if made.checks:
        errors = IndexErrors(made.checks, device)
        names |= {
            "errors": errors.notes,
            "errors_noted": errors.note,
            "raise_earlier_errors": errors.raise_earlier,
        }
    return TritonProgram(names["run"], device)


def as_promised(value: Tensor, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    """With the strides that the graph says, where they matter."""
    significant = [(s, t) for n, s, t in zip(sizes, strides, value.stride(), strict=True) if n > 1]
    if not value.numel() or all(s == t for s, t in significant):
        return value
    return restrided(value, strides)


def _stream_of(device: torch.device) -> Callable[[], int]:
    if INTERPRETED:
        return lambda: 0
    from triton.runtime import driver  # type: ignore[import-not-found]

    index = device.index or 0
    current: Callable[[int], int] = driver.active.get_current_stream
    return lambda: current(index)
