"""How far the functions of a backend's kernels are from the exact values, in units in the last place, over the floats.

The exact values are those of float64. Beside the distance: what is wrong where there is none, such as a NaN or an infinity in
the wrong place, or a zero of the wrong sign. `python benchmarks/dicp_accuracy.py --stride 1` takes all floats of 32 bits.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from torch import Tensor
from torch.nn.functional import pad

sys.path.insert(0, str(Path(__file__).resolve().parent))

from dicp_calls import backend_named, compiled
from report import Case, Options, Report, write_json

Function = Callable[..., Tensor]

UNARY: Mapping[str, Function] = {
    name: getattr(torch, name)
    for name in (
        *("exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sigmoid", "sqrt", "rsqrt", "reciprocal"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
        *("erf", "erfc"),
    )
}
BINARY: Mapping[str, Function] = {name: getattr(torch, name) for name in ("pow", "atan2", "hypot")}
LIMIT = 1.5
"""Units in the last place."""
CHUNK = 1 << 20
QUICK_STRIDE, STRIDE = 65_537, 1_021
"""Odd, so that all exponents and both ends of each are met."""
_EDGES = (
    0.0,
    1.0,
    2.0,
    3.0,
    0.5,
    1.5,
    88.7228,
    103.97,
    127.0,
    128.0,
    149.0,
    1e-45,
    1.1754944e-38,
    3.4028235e38,
)


@dataclass
class Accuracy:
    """Of one function."""

    name: str
    worst: float = 0.0
    at: tuple[float, ...] = ()
    wrong: int = 0
    """Values that are not as they must be: NaN, infinity, sign of zero."""
    wrong_at: tuple[float, ...] = ()
    count: int = 0

    def add(self, given: tuple[Tensor, ...], got: Tensor, exact: Tensor) -> None:
        rounded = exact.float()
        self.count += got.numel()
        unlike = (got.isnan() != exact.isnan()) | (
            (got == 0) & (rounded == 0) & (got.signbit() != rounded.signbit())
        )
        # Half a unit beyond the largest number the exact value still rounds to it, or to infinity.
        nearly = (exact.abs() > _LARGEST) & (exact.abs() < _LARGEST * (1 + 2**-23))
        unlike |= (got.isinf() != rounded.isinf()) & ~nearly
        distance = (got.double() - exact).abs() / _unit(exact)
        distance = torch.where(torch.isfinite(distance) & got.isfinite() & ~nearly, distance, 0.0)
        place = int(distance.argmax())
        if distance[place] > self.worst:
            self.worst, self.at = float(distance[place]), tuple(float(g[place]) for g in given)
        if bool(unlike.any()):
            self.wrong += int(unlike.sum())
            self.wrong_at = tuple(float(g[unlike][0]) for g in given)


_LARGEST = torch.finfo(torch.float32).max


def _unit(exact: Tensor) -> Tensor:
    """The distance of neighbouring floats there; of the denormal ones it is the same for all."""
    _, exponent = torch.frexp(exact)
    return torch.ldexp(torch.ones_like(exact), (exponent - 24).clamp(min=-149))


def floats(stride: int) -> Iterator[Tensor]:
    """Every `stride`th float, by its bits, and special ones."""
    edges = torch.tensor([*_EDGES, float("inf"), float("nan")])
    bits = torch.cat([edges, -edges]).view(torch.int32)
    yield (bits[:, None] + torch.arange(-40, 41, dtype=torch.int32)).flatten().view(torch.float32)
    for begin in range(0, 1 << 32, CHUNK * stride):
        wide = torch.arange(begin, min(begin + CHUNK * stride, 1 << 32), stride)
        yield (wide - (1 << 31)).to(torch.int32).view(torch.float32)


def pairs(stride: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Floats beside others: from all of them, and where functions of two have results of common size."""
    edges = torch.tensor([*_EDGES, float("inf"), float("nan"), 1 / 3, 0.9, 1.1, 31.0, 2.5])
    edges = torch.cat([edges, -edges])
    yield tuple(t.flatten() for t in torch.meshgrid(edges, edges, indexing="ij"))  # type: ignore[misc]
    generator = torch.Generator().manual_seed(1)
    for x in floats(stride * 4):
        yield x, x[torch.randperm(len(x), generator=generator)]
        yield x, torch.rand(x.shape, generator=generator) * 8 - 4
        near = 1 + (torch.rand(x.shape, generator=generator) - 0.5) / 8
        yield near, torch.randn(x.shape, generator=generator) * 400


def measured(backend: str, stride: int) -> list[Accuracy]:
    found = {name: Accuracy(name) for name in (*UNARY, *BINARY)}
    with torch.no_grad():
        for table, material in ((UNARY, ((x,) for x in floats(stride))), (BINARY, pairs(stride))):
            functions = tuple(table.values())
            operands = 1 if table is UNARY else 2
            call = compiled(
                lambda *given, functions=functions: [f(*given) for f in functions],
                tuple(torch.empty(CHUNK) for _ in range(operands)),
                backend_named(backend),
            )
            for given in material:
                length = len(given[0])
                results = call(*(pad(g, (0, CHUNK - length)) for g in given))
                for name, got in zip(table, results, strict=True):
                    exact = table[name](*(g.double() for g in given))
                    found[name].add(given, got[:length], exact)
    return list(found.values())


def report_of(found: list[Accuracy], backend: str) -> Report:
    cases = []
    for a in found:
        cells = [f"{a.count:,}", f"{a.worst:.3f}", _shown(a.at), f"{a.wrong:,}", _shown(a.wrong_at)]
        raw = {"count": a.count, "worst": a.worst, "at": a.at, "wrong": a.wrong, "wrong_at": a.wrong_at}
        cases.append(Case(a.name, math.inf if a.wrong else a.worst, cells, LIMIT, raw))
    columns = ["floats", "units at most", "at", "wrong kind", "at"]
    return Report(f"functions of float32 by {backend}, beside exact values", columns, cases)


def _shown(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.9g}" for value in values)


def measure(options: Options) -> Report:
    """For `benchmarks/run.py`: the backend that makes C++."""
    return report_of(measured("hostgraph", QUICK_STRIDE if options.quick else STRIDE), "hostgraph")


def main(
    backend: Annotated[str, typer.Option(help="as in torch.compile(backend=...)")] = "hostgraph",
    stride: Annotated[int, typer.Option(help="every such float; 1: all of them", min=1)] = STRIDE,
    json: Annotated[Path | None, typer.Option(help="write everything to this file")] = None,
) -> None:
    """Compare the functions of a backend's kernels with exact values."""
    torch.set_num_threads(1)
    report = report_of(measured(backend, stride), backend)
    report.print(Console(width=140))
    if json is not None:
        write_json(json, report.as_json("dicp_accuracy"))
    if report.missed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
