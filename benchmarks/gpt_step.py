"""A GPT of 125 million parameters trained on `dipu`, on the vendor `cuda`, beside plain torch.cuda: time, memory, calls, losses.

`DIPU_DEVICE=cuda python benchmarks/run.py gpt_step`. Each side is this file in a process of its own, in turn, so that
neither's memory or streams are in the other's way. Without `--quick`: batch 8, sequence 1024, bf16.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from report import Case, Options, Report

STEP_BAR, MEMORY_BAR, ADD_BAR, SHARE_BAR = 1.03, 1.05, 1.3, 0.95
ROUNDS = 2
PROFILED = 3


@dataclass(frozen=True)
class Shape:
    """What is trained, and for how long."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 50304
    batch: int = 8
    sequence: int = 1024
    warm_ups: int = 8
    steps: int = 25
    losses: int = 100


FULL = Shape()
QUICK = Shape(
    layers=2, width=64, heads=2, vocabulary=512, batch=2, sequence=64, warm_ups=3, steps=5, losses=10
)


class Block(nn.Module):
    """Attention and a multilayer perceptron, normalised in front."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before_attention(x)).split(width, dim=2)
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in parts
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.before_mlp(x)), approximate="tanh"))


class Gpt(nn.Module):
    """The head shares its weight with the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens, self.places = (
            nn.Embedding(shape.vocabulary, shape.width),
            nn.Embedding(shape.sequence, shape.width),
        )
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.reshape(-1))


class Training:
    """One model on one device, the same numbers on all of them: weights and tokens are drawn on the CPU."""

    def __init__(self, shape: Shape, device: str, nudge: bool = False) -> None:
        torch.manual_seed(0)
        model = Gpt(shape).to(torch.bfloat16)
        if nudge:
            # What rounding leaves open: every weight moves by up to half of what bfloat16 resolves, and is rounded again.
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1 + (torch.rand(parameter.shape) - 0.5).mul_(2**-8))
        tokens = torch.randint(0, shape.vocabulary, (4, shape.batch, shape.sequence + 1))
        self.model = model.to(device)
        self.tokens = tokens.to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        self.step_number = 0

    def step(self) -> Tensor:
        tokens = self.tokens[self.step_number % len(self.tokens)]
        self.step_number += 1
        loss: Tensor = self.model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def _seconds(module: Any, training: Training, shape: Shape) -> tuple[list[float], list[float]]:
    """Of steps until their work is done, and until it is queued."""
    times, queued = [], []
    for _ in range(shape.steps):
        module.synchronize()
        begin = time.perf_counter()
        training.step()
        queued.append(time.perf_counter() - begin)
        module.synchronize()
        times.append(time.perf_counter() - begin)
    return times, queued


def _kernels(module: Any, training: Training) -> list[tuple[str, int, float]]:
    """What the card ran in one step, by name: calls and milliseconds, the longest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(PROFILED):
            training.step()
        module.synchronize()
    total: dict[str, list[float]] = {}
    for event in profile.events() or ():
        if str(event.device_type).endswith("CUDA"):
            one = total.setdefault(event.name, [0, 0])
            one[0] += 1
            one[1] += event.time_range.elapsed_us()
    rows = [(name, round(calls / PROFILED), us / PROFILED / 1e3) for name, (calls, us) in total.items()]
    return sorted(rows, key=lambda row: -row[2])


def _small_add(module: Any, device: str) -> float:
    """Seconds of x + y for eight numbers, called from Python and queued."""
    x, y = torch.ones(8, device=device), torch.ones(8, device=device)
    best = math.inf
    for _ in range(20):
        module.synchronize()
        begin = time.perf_counter()
        for _ in range(1000):
            x + y
        best = min(best, (time.perf_counter() - begin) / 1000)
        module.synchronize()
    return best


def side(device: str, shape: Shape, wanted: str) -> dict[str, Any]:
    """What one process measures. `wanted`: step, or losses (with `nudged-losses` from moved weights)."""
    found: dict[str, Any] = {"device": device, "wanted": wanted}
    module = getattr(torch, device)
    training = Training(shape, device, nudge=wanted == "nudged-losses")
    if wanted != "step":
        found["losses"] = torch.stack([training.step() for _ in range(shape.losses)]).float().tolist()
        return found
    for _ in range(shape.warm_ups):
        training.step()
    module.synchronize()
    module.reset_peak_memory_stats()
    if device == "dipu":
        module.reset_op_counts()
    found["seconds"], found["queued"] = _seconds(module, training, shape)
    found["peak"] = module.max_memory_allocated()
    found["reserved"] = module.max_memory_reserved()
    free, total = module.mem_get_info()
    found["used_of_card"] = total - free
    if device == "dipu":
        counts = module.op_counts()
        found["ways"] = {way: sum(one[way] for one in counts.values()) for way in ("diopi", "alias", "copy")}
        found["not_by_diopi"] = {name: one for name, one in counts.items() if one["alias"] or one["copy"]}
    found["add"] = _small_add(module, device)
    try:
        found["kernels"] = _kernels(module, training)
    except RuntimeError as error:  # a card that may not be traced: the figures stand without it
        found["kernels"] = str(error)
    return found


def _run(device: str, wanted: str, quick: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "side.json"
        command = [sys.executable, __file__, device, wanted, str(path), *(["--quick"] if quick else [])]
        settings = {**os.environ, "DIPU_MOCK_CUDA": "0"}
        if device == "cuda":
            settings["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
        if not path.exists():
            raise RuntimeError(
                f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
            )
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def _cases(sides: dict[str, list[dict[str, Any]]]) -> Iterator[Case]:
    def best(device: str, key: str) -> float:
        return min(float(one[key]) for one in sides[device])

    def median_step(device: str) -> float:
        return statistics.median(second for one in sides[device] for second in one["seconds"])

    ours, theirs = median_step("dipu"), median_step("cuda")
    raw: dict[str, Any] = {device: [one["seconds"] for one in found] for device, found in sides.items()}
    raw |= {f"{device}_kernels": found[-1]["kernels"] for device, found in sides.items()}
    cells = [f"{ours * 1e3:.2f} ms", f"{theirs * 1e3:.2f} ms", f"{ours / theirs:.3f}"]
    yield Case("step", ours / theirs, cells, STEP_BAR, raw)
    ours, theirs = (
        statistics.median(second for one in sides[device] for second in one["queued"]) for device in sides
    )
    yield Case(
        "step, queued",
        ours / theirs,
        [f"{ours * 1e3:.2f} ms", f"{theirs * 1e3:.2f} ms", f"{ours / theirs:.3f}"],
    )
    for key, name in (
        ("peak", "peak memory"),
        ("reserved", "reserved"),
        ("used_of_card", "used of the card"),
    ):
        ours, theirs = best("dipu", key), best("cuda", key)
        bar = MEMORY_BAR if key == "peak" else None
        cells = [f"{ours / 2**20:.0f} MiB", f"{theirs / 2**20:.0f} MiB", f"{ours / theirs:.3f}"]
        yield Case(name, ours / theirs, cells, bar, {key: [ours, theirs]})
    ours, theirs = best("dipu", "add"), best("cuda", "add")
    yield Case(
        "x + y",
        ours / theirs,
        [f"{ours * 1e6:.2f} us", f"{theirs * 1e6:.2f} us", f"{ours / theirs:.3f}"],
        ADD_BAR,
    )
    last = sides["dipu"][-1]
    ways = last["ways"]
    elsewhere = 1 - ways["diopi"] / max(1, sum(ways.values()))
    cells = [f"{1 - elsewhere:.2%}", "", ", ".join(f"{way} {count}" for way, count in ways.items())]
    yield Case("calls not by DIOPI", elsewhere, cells, 1 - SHARE_BAR, {"not_by_diopi": last["not_by_diopi"]})


def _losses(quick: bool) -> Case:
    """The distance of two devices against what moved weights change: rounding leaves no less open."""
    found = {
        name: _run(device, wanted, quick)["losses"]
        for name, device, wanted in (
            ("dipu", "dipu", "losses"),
            ("cuda", "cuda", "losses"),
            ("moved", "cuda", "nudged-losses"),
        )
    }
    distance = [abs(a - b) for a, b in zip(found["dipu"], found["cuda"], strict=True)]
    noise = [abs(a - b) for a, b in zip(found["moved"], found["cuda"], strict=True)]
    finite = all(math.isfinite(loss) for losses in found.values() for loss in losses)
    figure = (
        math.sqrt(sum(d * d for d in distance) / max(sum(n * n for n in noise), 1e-30))
        if finite
        else math.inf
    )
    equal = sum(d == 0 for d in distance)
    cells = [
        f"{equal} of {len(distance)} equal",
        f"largest {max(distance):.2e}",
        f"{figure:.3f} of the noise",
    ]
    return Case("losses", figure, cells, 1.0, found)


def measure(options: Options) -> Report:
    sides: dict[str, list[dict[str, Any]]] = {"dipu": [], "cuda": []}
    for number in range(1 if options.quick else ROUNDS):
        for device, found in sides.items():
            found.append(_run(device, "step", options.quick))
            options.say(
                f"round {number + 1}, {device}: {statistics.median(found[-1]['seconds']) * 1e3:.2f} ms a step"
            )
    cases = [*_cases(sides), _losses(options.quick)]
    return Report("GPT step: dipu on the vendor cuda, against torch.cuda", ["dipu", "cuda", "ratio"], cases)


if __name__ == "__main__":
    name, what, out = sys.argv[1:4]
    if name == "dipu":
        import torch_dipu  # noqa: F401
    Path(out).write_text(json.dumps(side(name, QUICK if "--quick" in sys.argv else FULL, what)))
