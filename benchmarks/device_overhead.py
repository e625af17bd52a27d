"""Time on the device relative to native CPU: single operators and whole training steps, one thread.

The same Python code runs on both sides and only the device of its tensors differs, so on the host vendor the
ratio is the cost of the device layer itself: dispatch, allocation, the operator table, the way to the kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from interleaved import Comparison, Side, compare
from report import Case, Options, Report

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from gpt import GPT, GPTConfig

Work = Callable[[], object]


@dataclass(frozen=True)
class Subject:
    """Something to time: `build` makes the work for a device; the target is the largest acceptable ratio."""

    name: str
    build: Callable[[torch.device], Work]
    rounds: int
    target: float | None = None


def random(*shape: int, device: torch.device) -> torch.Tensor:
    """The same numbers on every device: made on the CPU, then moved."""
    return torch.randn(*shape, generator=torch.Generator("cpu").manual_seed(0), device="cpu").to(device)


def add(device: torch.device) -> Work:
    a, b = random(8, device=device), random(8, device=device)
    return lambda: torch.add(a, b)


def relu(device: torch.device) -> Work:
    a = random(8, device=device)
    return lambda: torch.relu(a)


def cat(device: torch.device) -> Work:
    pair = [random(8, device=device), random(8, device=device)]
    return lambda: torch.cat(pair)


def linear(device: torch.device) -> Work:
    x, weight, bias = (random(*s, device=device) for s in ((256, 256), (256, 256), (256,)))
    return lambda: torch.nn.functional.linear(x, weight, bias)


def mm(device: torch.device) -> Work:
    a, b = random(1024, 1024, device=device), random(1024, 1024, device=device)
    return lambda: torch.mm(a, b)


def train_step(width: int) -> Callable[[torch.device], Work]:
    """Forward, backward and AdamW of a 4-layer transformer, batch 8, sequence 128."""

    def build(device: torch.device) -> Work:
        torch.manual_seed(0)
        model = GPT(GPTConfig(vocabulary=64, context=128, layers=4, heads=4, width=width)).to(device)
        # `foreach` is set, not left to a default that may differ between devices.
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
        generator = torch.Generator("cpu").manual_seed(0)
        tokens = torch.randint(64, (8, 129), generator=generator, device="cpu").to(device)
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

        def step() -> None:
            optimizer.zero_grad()
            model.loss(inputs, targets).backward()
            optimizer.step()

        return step

    return build


SUBJECTS = (
    Subject("add, 8 elements", add, rounds=400, target=1.35),
    Subject("relu, 8 elements", relu, rounds=400),
    Subject("cat, 2 x 8 elements", cat, rounds=400),
    Subject("linear 256 x 256, batch 256", linear, rounds=300, target=1.05),
    Subject("mm 1024", mm, rounds=40),
    Subject("train step d=64", train_step(64), rounds=60, target=1.25),
    Subject("train step d=128", train_step(128), rounds=50),
    Subject("train step d=256", train_step(256), rounds=40, target=1.05),
)


def waiter(device: torch.device) -> Callable[[], None]:
    if device.type == "cpu":
        return lambda: None
    return getattr(torch, device.type).synchronize


def time_text(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def as_case(subject: Subject, result: Comparison) -> Case:
    low, high = result.quartiles
    cells = [
        time_text(result.baseline_median),
        time_text(result.candidate_median),
        f"{result.ratio_of_medians:.3f}",
        f"{result.median_of_ratios:.3f}",
        f"{low:.3f} - {high:.3f}",
    ]
    raw = {
        "baseline_median_s": result.baseline_median,
        "candidate_median_s": result.candidate_median,
        "ratio_of_medians": result.ratio_of_medians,
        "median_of_ratios": result.median_of_ratios,
        "quartiles": [low, high],
        "calls_per_slice": result.calls,
        "baseline_s": result.baseline,
        "candidate_s": result.candidate,
    }
    return Case(subject.name, result.median_of_ratios, cells, subject.target, raw)


def cases(options: Options) -> Iterator[Case]:
    cpu, device = torch.device("cpu"), torch.device(options.device)
    for subject in SUBJECTS:
        options.say(f"measuring {subject.name} ...")
        baseline = Side(subject.build(cpu), waiter(cpu))
        candidate = Side(subject.build(device), waiter(device))
        rounds = max(3, subject.rounds // 20) if options.quick else subject.rounds
        yield as_case(subject, compare(baseline, candidate, rounds))


def measure(options: Options) -> Report:
    torch.set_num_threads(1)
    columns = ["cpu", options.device, "of medians", "of rounds", "middle half"]
    title = f"Time on {options.device} relative to the CPU, one thread: ratio of medians, median of rounds"
    notes = {"device": options.device, "quick": options.quick}
    return Report(title, columns, list(cases(options)), notes)


if __name__ == "__main__":
    import run

    run.main(["device_overhead", *sys.argv[1:]])
