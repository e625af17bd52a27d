"""The backend `tritongraph` on a GPU: norms against copy bandwidth, pointwise + LayerNorm and a llama block against Inductor.

`python benchmarks/run.py dicp_gpu --device cuda`, or this file, which writes each part as it comes and ends in time:

    python benchmarks/dicp_gpu.py --device cuda --limit 150 --json dicp_gpu.json

Figures with a target are times over a bound: 1/0.92 of what a copy of the same bytes takes, half of Inductor's time, Inductor's
time. Errors are those against float32, beside eager's own. Without a GPU (`--device cpu` and TRITON_INTERPRET=1) everything is
tiny: that shows that it runs, nothing else.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from torch import Tensor, nn

from gpu_timing import Timed, Work, in_turn, recorded
from report import Case, Options, Report, write_json

OF_BANDWIDTH = 1 / 0.92
HALF = 0.5
AS_FAST = 1.0
# Of the errors against float32: both round to bfloat16, at different places.
OF_ITS_ERROR = 1.5
MODES = ("default", "max-autotune-no-cudagraphs")
Function = Callable[..., Any]


class RmsNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, True) + 1e-5)).to(x.dtype) * self.weight


@dataclass(frozen=True)
class BlockSizes:
    hidden: int = 4096
    heads: int = 32
    inner: int = 11008
    tokens: int = 2048


TINY = BlockSizes(64, 2, 96, 16)


class LlamaBlock(nn.Module):
    """Attention with rotated queries and keys, and a gated MLP."""

    def __init__(self, sizes: BlockSizes) -> None:
        super().__init__()
        self.sizes, hidden, inner = sizes, sizes.hidden, sizes.inner
        self.norms = nn.ModuleList(RmsNorm(hidden) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        normed = self.norms[0](x)
        q, k, v = (
            linear(normed).view(batch, tokens, self.sizes.heads, -1).transpose(1, 2)
            for linear in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(
            _rotated(q, cos, sin), _rotated(k, cos, sin), v, is_causal=True
        )
        x = x + self.o(mixed.transpose(1, 2).reshape(x.shape))
        normed = self.norms[1](x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def inductor(function: Function, mode: str = "default") -> Function:
    return torch.compile(function, mode=mode)


def dicp(function: Function) -> Function:
    return torch.compile(function, backend="tritongraph", fullgraph=True)


@dataclass
class PartTimer:
    """Ends parts that take too long."""

    limit: float
    say: Callable[[str], None]
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        return self.limit - (time.monotonic() - self.started)

    @contextmanager
    def part(self, name: str, seconds: float) -> Iterator[None]:
        """An error, or too long a time, ends this part alone."""
        allowed = min(seconds, self.left)
        if allowed < 3:
            self.say(f"{name}: no time is left")
            raise TimeoutError
        self.say(f"{name} ... ({self.left:.0f} s left)")

        def end(*_: object) -> None:
            raise TimeoutError(f"{name} took longer than {allowed:.0f} s")

        before = signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, allowed)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def errors(got: Any, eager: Any, exact: Any) -> dict[str, Any]:
    """The largest share of eager's own error that is exceeded, over all results."""
    worst, own = 0.0, 0.0
    for mine, theirs, truth in zip(_flat(got), _flat(eager), _flat(exact), strict=True):
        wide = truth.detach().double()
        scale = wide.abs().mean().clamp_min(1e-30)
        pair = [float((x.detach().double() - wide).pow(2).mean().sqrt() / scale) for x in (mine, theirs)]
        worst, own = max(worst, pair[0] / max(pair[1], 1e-12)), max(own, pair[1])
    return {"error_over_eager": worst, "eager_error": own, "right": worst <= OF_ITS_ERROR}


def _flat(value: Any) -> list[Tensor]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def compared(name: str, times: Mapping[str, Timed], target: float | None, raw: dict[str, Any]) -> Case:
    """A row: times of all sides; the figure is ours over Inductor's best that was measured."""
    mine = times["dicp"].median
    others = [timed.median for side, timed in times.items() if side.startswith("inductor")]
    figure = mine / min(others) if others else 0.0
    raw = {**raw, "seconds": {side: timed.rounds for side, timed in times.items()}}
    return Case(name, figure, _cells(times, figure, raw), target, raw)


def _cells(times: Mapping[str, Timed], figure: float, raw: Mapping[str, Any]) -> list[str]:
    def cell(side: str) -> str:
        return f"{times[side].median * 1e3:.3f} ms" if side in times else ""

    sides = [cell(side) for side in ("dicp", "eager", *(f"inductor {mode}" for mode in MODES))]
    right = f"{raw['error_over_eager']:.2f} of eager's" if "error_over_eager" in raw else ""
    bandwidth = (
        f"{raw['of_bandwidth']:.1%}" if "of_bandwidth" in raw else f"{1 / figure:.2f}x" if figure else ""
    )
    return [*sides, bandwidth, right if raw.get("right", True) else f"WRONG: {right}"]


class GpuBench:
    """All parts, one after the other."""

    def __init__(self, options: Options, limit: float) -> None:
        self.options, self.device = options, torch.device(options.device)
        self.tiny = self.device.type == "cpu"
        self.rounds = 3 if options.quick or self.tiny else 11
        self.timer = PartTimer(limit, options.say)
        self.copied = 0.0
        self.notes: dict[str, Any] = {"failed": {}}

    def cases(self) -> Iterator[Case]:
        parts: list[tuple[str, float, Callable[[], Iterator[Case]]]] = [
            ("copy bandwidth", 20, self._bandwidth),
            ("norms", 40, self._norms),
            ("pointwise + LayerNorm", 30, self._pointwise),
            ("llama block forward", 50, lambda: self._block(False, MODES[:1])),
            ("llama block forward + backward", 60, lambda: self._block(True, MODES[:1])),
            ("llama block forward, autotuned", 70, lambda: self._block(False, MODES[1:])),
            ("llama block forward + backward, autotuned", 90, lambda: self._block(True, MODES[1:])),
        ]
        for name, seconds, part in parts[:5] if self.tiny else parts:
            torch._dynamo.reset()
            try:
                with self.timer.part(name, seconds):
                    yield from part()
            except Exception as error:  # the parts behind it are worth having
                self.notes["failed"][name] = f"{type(error).__name__}: {error}"[:2000]
                self.options.say(f"{name}: {self.notes['failed'][name][:600]}")

    def _randn(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=torch.bfloat16)

    def _timed(self, sides: Mapping[str, Work], graphs: bool) -> dict[str, Timed]:
        if graphs:
            sides = {name: recorded(work, self.device) for name, work in sides.items()}
        return in_turn(sides, self.device, self.rounds)

    def _bandwidth(self) -> Iterator[Case]:
        size = 2**16 if self.tiny else 2**30
        source = self._randn(size // 2)
        target = torch.empty_like(source)
        times = self._timed({"copy": lambda: torch.mul(source, 1, out=target)}, True)
        self.copied = self.notes["copy_bytes_per_second"] = 2 * size / times["copy"].median
        self.options.say(f"copy: {self.copied / 1e12:.2f} TB/s")
        yield from ()

    def _norms(self) -> Iterator[Case]:
        rows, columns = (32, 128) if self.tiny else (32768, 4096)
        x = self._randn(rows, columns)
        for name, module in (("RMSNorm", RmsNorm(columns)), ("LayerNorm", nn.LayerNorm(columns))):
            norm = module.to(self.device, torch.bfloat16)
            yield self._rows(f"{name} {rows} x {columns}", norm, x, OF_BANDWIDTH)

    def _pointwise(self) -> Iterator[Case]:
        rows, columns = (32, 128) if self.tiny else (16384, 4096)
        norm = nn.LayerNorm(columns).to(self.device, torch.bfloat16)

        def function(x: Tensor) -> Tensor:
            return norm(F.gelu(x) * x.sigmoid() + x.tanh())

        x = self._randn(rows, columns)
        yield self._rows(f"gelu * sigmoid + tanh, LayerNorm {rows} x {columns}", function, x, HALF, norm)

    def _rows(
        self, name: str, function: Function, x: Tensor, target: float, norm: nn.Module | None = None
    ) -> Case:
        with torch.no_grad():
            calls = {"dicp": dicp(function), "eager": function}
            results = {side: call(x) for side, call in calls.items()}
            if not self.tiny:
                calls["inductor default"] = inductor(function)
                calls["inductor default"](x)
            module = norm if norm is not None else function
            assert isinstance(module, nn.Module)
            raw = errors(results["dicp"], results["eager"], _in_float(module, function, x))
            times = self._timed({side: (lambda c=call: c(x)) for side, call in calls.items()}, True)  # type: ignore[misc]
        if norm is not None:
            return compared(name, times, target, raw)
        moved = 2 * x.numel() * x.element_size()
        raw |= {"bytes": moved, "of_bandwidth": moved / times["dicp"].median / self.copied}
        raw |= {"seconds": {side: timed.rounds for side, timed in times.items()}}
        figure = 1 / raw["of_bandwidth"]
        return Case(name, figure, _cells(times, figure, raw), target, raw)

    def _block(self, backward: bool, modes: tuple[str, ...]) -> Iterator[Case]:
        sizes = TINY if self.tiny else BlockSizes()
        torch.manual_seed(0)
        block = LlamaBlock(sizes).to(self.device, torch.bfloat16)
        x = self._randn(1, sizes.tokens, sizes.hidden).requires_grad_(backward)
        angles = torch.outer(
            torch.arange(sizes.tokens, device=self.device),
            10000 ** -torch.linspace(0, 1, sizes.hidden // sizes.heads // 2, device=self.device),
        ).repeat(1, 2)
        given = x, angles.cos().bfloat16(), angles.sin().bfloat16()
        gradient = torch.randn_like(x)

        def work(function: Function, *arguments: Tensor) -> Any:
            if not backward:
                with torch.no_grad():
                    return function(*arguments)
            result = function(*arguments)
            parameters = [arguments[0], *block.parameters()]
            return result, *torch.autograd.grad(result, parameters, gradient.to(result.dtype))

        calls: dict[str, Function] = {"dicp": dicp(block), "eager": block}
        results = {side: work(call, *given) for side, call in calls.items()}
        if not self.tiny:
            calls |= {f"inductor {mode}": inductor(block, mode) for mode in modes}
        times_of = {side: (lambda c=call: work(c, *given)) for side, call in calls.items()}  # type: ignore[misc]
        times = self._timed(times_of, False)
        block.float()
        wide = [argument.detach().float().requires_grad_(argument.requires_grad) for argument in given]
        raw = errors(results["dicp"], results["eager"], work(block, *wide))
        what = "forward + backward" if backward else "forward"
        against = f" against {modes[0]}" if modes[0] != "default" else ""
        yield compared(f"llama block {what}, {sizes.tokens} x {sizes.hidden}{against}", times, AS_FAST, raw)


def _in_float(module: nn.Module, function: Function, x: Tensor) -> Tensor:
    dtype = next(module.parameters()).dtype
    module.float()
    result: Tensor = function(x.float())
    module.to(dtype)
    return result


COLUMNS = ["dicp", "eager", *(f"Inductor {mode}" for mode in MODES), "bandwidth or speed", "error"]


def report_of(bench: GpuBench, cases: list[Case]) -> Report:
    device = bench.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return Report(f"tritongraph on {name}, bf16", COLUMNS, cases, {**bench.notes, "device": name})


def measure(options: Options) -> Report:
    bench = GpuBench(options, 600)
    return report_of(bench, list(bench.cases()))


def main(
    device: Annotated[str, typer.Option(help="cuda, or cpu with TRITON_INTERPRET=1")] = "cuda",
    limit: Annotated[float, typer.Option(help="seconds for all parts")] = 150.0,
    json: Annotated[Path | None, typer.Option(help="written after every case")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="fewer rounds: a smoke test, not a figure")] = False,
) -> None:
    """Measure the backend tritongraph."""
    console = Console(width=160)
    bench = GpuBench(Options(quick, device, say=lambda line: console.print(line, markup=False)), limit)
    cases: list[Case] = []
    for case in bench.cases():
        cases.append(case)
        console.print(case.name, case.cells, case.verdict, markup=False)
        if json is not None:
            write_json(json, report_of(bench, cases).as_json("dicp_gpu"))
    report = report_of(bench, cases)
    report.print(console)
    if json is not None:
        write_json(json, report.as_json("dicp_gpu"))


if __name__ == "__main__":
    typer.run(main)
